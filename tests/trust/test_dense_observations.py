"""Observations inside of steps are about as accurate as the ends of steps (12.17)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from trust.helpers import cases, times

RTOL = 1e-5


class Swing:
    """dy/dt = w cos(w t), hence y = sin(w t); keeps the starts of accepted steps."""

    def __init__(self, frequency: float) -> None:
        self.frequency, self.ends = frequency, list[tuple[float, float]]()

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        return self.frequency * torch.cos(self.frequency * t) * torch.ones_like(y)

    def callback_accept_step(self, t: Tensor, y: Tensor, dt: Tensor) -> None:
        self.ends.append((t.item(), y.item()))


@pytest.mark.parametrize(
    ("method", "frequency"),
    cases(
        ["dopri5", "tsit5", "dopri8", "bosh3"],
        [3.0, 10.0],
        failing=[("dopri5", 3.0), ("dopri5", 10.0), ("tsit5", 3.0)],
        reason="12.17 observations inside of steps",
    ),
)
def test_dense_observations_are_as_accurate_as_the_ends_of_steps(method: str, frequency: float) -> None:
    f, t = Swing(frequency), torch.linspace(0, 10, 1001, dtype=torch.float64)
    ys: Any = qj.odeint(f, times(0.0), t, method=method, rtol=RTOL, atol=RTOL)
    inside = float((ys[:, 0] - torch.sin(frequency * t)).abs().max())
    at_ends = max(abs(y - math.sin(frequency * s)) for s, y in f.ends)
    assert inside < 5 * max(at_ends, RTOL)
