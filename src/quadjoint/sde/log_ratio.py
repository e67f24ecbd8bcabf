"""Latent SDEs: how far a process is from its prior, as one more state of a solve (Li et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quadjoint.sde.neural_sde import NeuralSDE


class LogRatioSDE(nn.Module):
    """An SDE whose last state is the integral of `NeuralSDE.energy`, as torchsde reads it.

    ``equation`` is ``sde`` in the calculus of the solver.
    """

    def __init__(self, sde: NeuralSDE, equation: NeuralSDE) -> None:
        super().__init__()
        self.sde, self.equation = sde, equation
        self.noise_type, self.sde_type = equation.noise_type, equation.sde_type

    def f(self, t: Tensor, state: Tensor) -> Tensor:
        y = state[:, :-1]
        return torch.cat([self.equation.f(t, y), self.sde.energy(t, y).unsqueeze(1)], dim=1)

    def g(self, t: Tensor, state: Tensor) -> Tensor:
        g = self.equation.g(t, state[:, :-1])
        rows = (0, 1) if self.noise_type == "diagonal" else (0, 0, 0, 1)  # no noise in the last state
        return nn.functional.pad(g, rows)


def split_log_ratio(ys: Tensor) -> tuple[Tensor, Tensor]:
    """The states, and what the last of them grew by between two times, shape (len(t) - 1, batch)."""
    return ys[..., :-1], ys[..., -1].diff(dim=0)
