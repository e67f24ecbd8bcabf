"""Figures of a solve."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class Stats:
    """Figures of a solve: the forward ones at once, the backward ones once ``backward()`` has run.

    Every evaluation of f is counted, also those that are made to know its parameters, sizes and time gradients. An
    evaluation of n points at once counts as n. If every sample takes steps of its own, the accepted and rejected steps
    are counted for each, in tensors of shape (B,), and evaluations for the whole batch.

    >>> import torch, quadjoint as qj
    >>> sol = qj.solve(lambda t, y: -y, torch.ones(1), torch.tensor([0.0, 1.0]))
    >>> sol.stats.forward_evaluations > 0, sol.stats.backward_evaluations
    (True, 0)
    """

    forward_evaluations: int = 0
    accepted_steps: int | Tensor = 0
    rejected_steps: int | Tensor = 0
    backward_evaluations: int = 0
    vjp_state: int = 0
    vjp_params: int = 0
    backward_accepted_steps: int = 0
    backward_rejected_steps: int = 0
    quadrature_nodes: int = 0
    gradient_error: float | None = None
    method: str = ""
    reason: str = ""
