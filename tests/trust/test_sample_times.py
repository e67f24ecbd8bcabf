"""Times per sample: far from zero (12.4), and the same states whatever the gradient (12.7)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quadjoint as qj
from trust.helpers import DTYPE, GRADIENTS, Field, assert_close, cases, normal

CLOCKS = ("direct", "gq")  # one of each of the two ways in which samples share a clock today
OFFSETS = torch.tensor([[0.0, 0.27, 1.04], [0.0, 0.53, 2.1], [0.0, 1.02, 1.47]], dtype=DTYPE)


@pytest.mark.parametrize(
    ("origin", "gradient"),
    cases([0.0, 1000.0, 1000000.0, 1700000000.0], CLOCKS),
)
def test_a_float32_state_moves_by_the_differences_of_its_times(origin: float, gradient: Any) -> None:
    """dy/dt = -r y decays by exp(-r (t - t0)), however large t is, and so do gradients in r and t."""
    found: list[list[torch.Tensor]] = []
    for solved in (True, False):
        rate = torch.tensor(0.7, requires_grad=True)
        t = (origin + OFFSETS).requires_grad_()
        if solved:
            ys = qj.odeint(lambda t, y, r=rate: -r * y, torch.ones(3, 1), t, gradient=gradient, rtol=1e-6)
        else:
            ys = torch.exp(-rate.double() * (t - t[:, :1])).T[..., None]
        found.append([ys.detach(), *torch.autograd.grad(ys.square().sum(), (rate, t))])
    for ours, exact in zip(*found, strict=True):
        assert_close([ours], [exact], within=1e-4)


SETTINGS: dict[str, dict[str, Any]] = {
    "dopri5": {"rtol": 1e-4, "atol": 1e-6},
    "rk4": {"options": {"step_size": 0.1}},
    "tsit5": {"rtol": 1e-4, "atol": 1e-6, "options": {"first_step": 0.05}},
}
SLOPES = torch.tensor([1.0, 0.6, 1.7, 1.2], dtype=DTYPE)[:, None]


def states(method: str, gradient: Any, t: torch.Tensor) -> torch.Tensor:
    return qj.odeint(Field(), normal(4, 3), t, method=method, gradient=gradient, **SETTINGS[method]).detach()


@pytest.mark.parametrize(
    ("method", "gradient"),
    cases(SETTINGS, GRADIENTS),
)
def test_states_at_times_per_sample_do_not_depend_on_the_gradient(method: str, gradient: Any) -> None:
    t = SLOPES * torch.tensor([0.0, 0.3, 0.7, 1.0], dtype=DTYPE)
    assert torch.equal(states(method, gradient, t), states(method, "direct", t))


@pytest.mark.parametrize(("method", "gradient"), cases(SETTINGS, GRADIENTS))
def test_states_at_shared_times_do_not_depend_on_the_gradient(method: str, gradient: Any) -> None:
    t = torch.tensor([0.0, 0.3, 0.7, 1.0], dtype=DTYPE)
    assert torch.equal(states(method, gradient, t), states(method, "direct", t))


@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_states_do_not_depend_on_whether_they_are_differentiated(gradient: Any) -> None:
    t = torch.tensor([0.0, 0.3, 0.7, 1.0], dtype=DTYPE)
    with torch.no_grad():
        plain = states("dopri5", gradient, t)
    assert torch.equal(states("dopri5", gradient, t), plain)
