"""Accepted steps and the continuous solution that they make up."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Step(Protocol):
    """One step from ``t0`` to ``t1`` (either direction) with states at its ends and between them."""

    t0: float
    t1: float
    y0: Tensor
    y1: Tensor

    @property
    def error(self) -> Tensor | None:
        """Estimate of the local error, None where the method has none."""

    def evaluate(self, times: Sequence[float]) -> Tensor:
        """States at ``times`` within the step, stacked along a new first dimension."""


class DenseOutput:
    """The solution as a function of time, from the accepted steps in the order they were taken."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.sign = 1.0 if not steps or steps[-1].t1 >= steps[0].t0 else -1.0
        self._ends = [self.sign * step.t1 for step in steps]

    def step_at(self, t: float) -> Step:
        index = bisect.bisect_left(self._ends, self.sign * t)
        return self.steps[min(index, len(self.steps) - 1)]

    def __call__(self, t: float) -> Tensor:
        return self.step_at(t).evaluate([t])[0]

    def many(self, times: Sequence[float]) -> Tensor:
        """States at several times (any order), stacked."""
        return torch.stack([self(t) for t in times])


def hermite_weights(theta: float) -> tuple[float, float, float, float]:
    """Weights of (y0, y1, h f0, h f1) in the cubic Hermite interpolant at ``theta`` in [0, 1]."""
    h01 = theta * theta * (3 - 2 * theta)
    return 1 - h01, h01, theta * (1 - theta) ** 2, theta * theta * (theta - 1)
