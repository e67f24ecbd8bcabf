"""Gradients of event times and of states at events, against closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from gradient.helpers import ALL, relative, times

METHODS: tuple[Any, ...] = (
    *ALL,
    "auto",
    *(qj.DiscreteAdjoint(mode=mode) for mode in ("joint", "stacked")),
    qj.DiscreteAdjoint(keep="states"),
    qj.DiscreteAdjoint(max_states=2),
    qj.QuadratureAdjoint(qj.PerStep()),
    qj.GaussLegendre(rtol=1e-8),
)


def decay(how: Any, ahead: float, turn: float, method: str, options: dict[str, Any]) -> list[Tensor]:
    """dy/dt = -a y / turn reaches 1 at t0 + turn log(y0) / a; a component behind it goes as exp(-b (t - t0) / turn)."""
    a, b, t0, y0 = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.7, 0.4, 0.3, 3.0))

    def f(t: Tensor, y: Tensor) -> Tensor:
        return -torch.stack([a * y[0], b * y[1]]) / turn

    start = torch.stack([y0, y0.square()])
    event, ys = qj.odeint(
        f,
        start,
        torch.stack([t0, t0.detach() + turn * ahead]),
        event_fn=lambda t, y: y[0] - 1.0,
        gradient=how,
        method=method,
        rtol=1e-8,
        atol=1e-8,
        options=options,
    )
    exact_event = t0 + turn * torch.log(y0) / a
    exact_last = y0.square() * torch.exp(-b / a * torch.log(y0))
    assert event.item() == pytest.approx(exact_event.item(), abs=1e-6)
    assert ys[-1][1].item() == pytest.approx(exact_last.item(), rel=1e-6)
    inputs = (a, b, t0, y0)
    found = torch.autograd.grad(event + ys[-1][1].square() + ys[-1][0], inputs)
    exact = torch.autograd.grad(exact_event + exact_last.square(), inputs)
    return [torch.stack(found), torch.stack(exact)]


@pytest.mark.parametrize("turn", [1.0, -1.0])
@pytest.mark.parametrize("ahead", [5.0, 0.1])
@pytest.mark.parametrize("how", METHODS)
def test_gradients_of_an_event_are_the_exact_ones(how: Any, ahead: float, turn: float) -> None:
    """Also where the event comes after the time that was only to give the direction."""
    found, exact = decay(how, ahead, turn, "dopri5", {})
    assert relative([found], [exact]) < (1e-3 if how == "gq-paper" else 1e-6)


@pytest.mark.parametrize("ahead", [5.0, 0.1])
@pytest.mark.parametrize("how", METHODS)
def test_gradients_of_an_event_between_grid_points(how: Any, ahead: float) -> None:
    found, exact = decay(how, ahead, 1.0, "rk4", {"step_size": 0.05})
    assert relative([found], [exact]) < (1e-3 if how == "gq-paper" else 1e-5)


@pytest.mark.parametrize("how", METHODS)
def test_a_bouncing_ball_is_differentiated_through_its_bounces(how: Any) -> None:
    """Three bounces with restitution r: the time of the n-th one is v0 / g (1 + 2 (r + ... + r^(n-1)) + 1)."""
    g, r, v0 = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (9.8, 0.8, 5.0))
    t = torch.zeros((), dtype=torch.float64)
    y = torch.stack([torch.full((), 1e-9, dtype=torch.float64), v0])

    def f(t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([y[1], -g + 0.0 * y[0]])

    for _ in range(3):
        t, ys = qj.odeint(
            f, y, torch.stack([t, t.detach() + 1.0]), event_fn=lambda t, y: y[0], gradient=how, rtol=1e-9, atol=1e-9
        )
        y = torch.stack([torch.full((), 1e-9, dtype=torch.float64), -r * ys[-1][1]])
    exact = 2 * v0 / g * (1 + r + r**2)
    assert t.item() == pytest.approx(exact.item(), rel=1e-6)
    found = torch.autograd.grad(t, (g, r, v0))
    assert relative(found, torch.autograd.grad(exact, (g, r, v0))) < 1e-5


def test_the_first_of_several_events_counts() -> None:
    y0 = times(1.0, 2.0).requires_grad_()
    event, ys = qj.odeint(lambda t, y: -torch.ones_like(y), y0, times(0.0, 1.0), event_fn=lambda t, y: y)
    assert event.item() == pytest.approx(1.0, abs=1e-6)
    (found,) = torch.autograd.grad(event, y0)
    assert torch.allclose(found, times(1.0, 0.0), atol=1e-9)
    assert torch.allclose(ys[-1], times(0.0, 1.0), atol=1e-6)
