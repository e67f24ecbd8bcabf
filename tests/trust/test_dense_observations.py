"""Observations inside of steps are about as accurate as the ends of steps (12.17)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from trust.helpers import times

RTOL = 1e-5


class Swing:
    """dy/dt = w cos(w t), hence y = sin(w t); keeps the starts of accepted steps."""

    def __init__(self, frequency: float) -> None:
        self.frequency, self.ends = frequency, list[tuple[float, float]]()

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        return self.frequency * torch.cos(self.frequency * t) * torch.ones_like(y)

    def callback_accept_step(self, t: Tensor, y: Tensor, dt: Tensor) -> None:
        self.ends.append((t.item(), y.item()))


def errors(method: str, frequency: float, **options: Any) -> tuple[float, float]:
    """The largest error inside of steps, and at their ends."""
    f, t = Swing(frequency), torch.linspace(0, 10, 1001, dtype=torch.float64)
    ys: Any = qj.odeint(f, times(0.0), t, method=method, rtol=RTOL, atol=RTOL, options=options)
    inside = float((ys[:, 0] - torch.sin(frequency * t)).abs().max())
    return inside, max(abs(y - math.sin(frequency * s)) for s, y in f.ends)


@pytest.mark.parametrize("frequency", [3.0, 10.0])
@pytest.mark.parametrize(
    ("method", "options"),
    [("dopri5", {"interp": "quintic"}), ("tsit5", {"interp": "quintic"}), ("dopri8", {}), ("bosh3", {})],
)
def test_dense_observations_are_as_accurate_as_the_ends_of_steps(
    method: str, options: dict[str, Any], frequency: float
) -> None:
    inside, at_ends = errors(method, frequency, **options)
    assert inside < 5 * max(at_ends, RTOL)


def test_the_quintic_is_worth_its_two_stages() -> None:
    """The quartic of dopri5, which torchdiffeq has too, is off by much more than the tolerance here."""
    quartic, quintic = (errors("dopri5", 10.0, interp=kind)[0] for kind in ("quartic", "quintic"))
    assert quintic < 0.2 * quartic


def test_another_interpolation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"interp.*quartic, quintic"):
        errors("dopri5", 3.0, interp="linear")
