"""Where the states z(t) of the backward pass come from: kept from the forward solve, or solved again backwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quadjoint.solver.interpolation import DenseOutput
from quadjoint.solver.methods.runge_kutta import RungeKuttaStep


@dataclass(frozen=True)
class Stored:
    """Keep the forward solve as polynomials, a few state-sized vectors a step. Only the adjoint is solved backwards.

    >>> import torch, quadjoint as qj
    >>> qj.GaussLegendre(trajectory=qj.Stored()).trajectory
    Stored()
    """


@dataclass(frozen=True)
class Backsolve:
    """Solve z backwards beside the adjoint: constant memory, and wrong where the dynamics contract strongly.

    >>> import torch, quadjoint as qj
    >>> qj.GaussLegendre(trajectory=qj.Backsolve()).trajectory
    Backsolve()
    """


class PolynomialStep:
    """A step as y0 + sum_d c_d theta^d; less to keep and quicker to evaluate than its stages."""

    __slots__ = ("coefficients", "t0", "t1", "y0", "y1")

    def __init__(self, step: RungeKuttaStep) -> None:  # with all stages of the continuous extension
        dense = step.method.tableau.dense * (step.t1 - step.t0)
        weights = torch.as_tensor(dense.T.copy(), dtype=step.y0.dtype, device=step.y0.device)
        stages = step.stacked().reshape(len(step.ks), -1)
        self.coefficients = weights @ stages  # (degree, numbers)
        self.t0, self.t1, self.y0, self.y1 = step.t0, step.t1, step.y0, step.y1

    def evaluate(self, times: Sequence[float]) -> Tensor:
        h, degree = self.t1 - self.t0, len(self.coefficients)
        theta = [(t - self.t0) / h for t in times]
        powers = torch.tensor(
            [[x**d for d in range(1, degree + 1)] for x in theta], dtype=self.y0.dtype, device=self.y0.device
        )
        return (powers @ self.coefficients).reshape(len(times), *self.y0.shape) + self.y0


class TrajectoryRecorder:
    """Collects the accepted steps of the forward solve as a continuous function.

    Its accuracy is that of the method, also where observations are made by linear interpolation.
    """

    def __init__(self) -> None:
        self.steps: list[Any] = []

    def __call__(self, step: Any) -> None:
        step = step.smooth() if hasattr(step, "smooth") else step
        self.steps.append(PolynomialStep(step) if isinstance(step, RungeKuttaStep) else step)

    def dense(self) -> DenseOutput:
        return DenseOutput(self.steps)
