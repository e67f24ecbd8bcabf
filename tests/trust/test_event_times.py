"""Events: derivatives of every order, parameters of the event alone, location, and what comes after (12.8)."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from trust.helpers import DTYPE, GRADIENTS, cases, times

SETTINGS: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


def scalars(*values: float) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(x, dtype=DTYPE, requires_grad=True) for x in values)


def fall(
    rate: Tensor, start: Tensor, level: Tensor | float, gradient: Any, *, ahead: float = 1.0, **settings: Any
) -> tuple[Tensor, Tensor]:
    """dy/dt = rate y falls from ``start`` to ``level`` at log(level / start) / rate; z' = y comes along."""

    def f(t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([rate * y[0], y[0]])

    y0 = torch.stack([start, torch.zeros_like(start)])
    time, ys = qj.odeint(
        f,
        y0,
        times(0.0, ahead),
        event_fn=lambda t, y: y[0] - level,
        gradient=gradient,
        **{**SETTINGS, **settings},
    )
    return time, ys[-1, 1]


def hessian(value: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    first = torch.autograd.grad(value, inputs, create_graph=True)
    rows = [torch.autograd.grad(g, inputs, retain_graph=True, allow_unused=True) for g in first]
    return torch.stack([torch.zeros((), dtype=DTYPE) if h is None else h for h in itertools.chain(*rows)])


def at_event(gradient: Any, inputs: tuple[Tensor, ...]) -> list[tuple[Tensor, Tensor]]:
    """Time and state at an event, each with its exact value; the inputs are rate, start and level."""
    rate, start, level = inputs
    exact = torch.log(level / start) / rate, (level - start) / rate
    return list(zip(fall(rate, start, level, gradient), exact, strict=True))


@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_second_derivatives_in_the_dynamics(gradient: Any) -> None:
    """In the rate -0.7 and the start 2; the second derivative of the time in the rate is 8.083."""
    inputs = scalars(-0.7, 2.0, 0.5)
    for found, exact in at_event(gradient, inputs):
        assert found.item() == pytest.approx(exact.item(), rel=1e-7)
        torch.testing.assert_close(hessian(found, inputs[:2]), hessian(exact, inputs[:2]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "gradient",
    cases(GRADIENTS),
)
def test_second_derivatives_in_the_level(gradient: Any) -> None:
    inputs = scalars(-0.7, 2.0, 0.5)
    for found, exact in at_event(gradient, inputs):
        torch.testing.assert_close(hessian(found, inputs), hessian(exact, inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_a_parameter_of_the_event_alone_has_a_gradient(gradient: Any) -> None:
    """y = 2 exp(-0.7 t) reaches m at log(m / 2) / -0.7, hence dt/dm = -1 / (0.7 m) and dz/dm = -1 / 0.7."""
    (level,) = scalars(0.5)
    rate, start = times(-0.7, 2.0)
    time, state = fall(rate, start, level, gradient)
    assert time.requires_grad and state.requires_grad
    found = [torch.autograd.grad(x, level, retain_graph=True)[0].item() for x in (time, state)]
    assert found == pytest.approx([-1 / 0.35, -1 / 0.7], rel=1e-5)


@pytest.mark.parametrize(
    ("scale", "method"),
    cases([1e-12, 1e-08, 0.001, 100000000.0], ["dopri5", "rk4"]),
)
def test_events_are_located_on_any_scale_of_time(scale: float, method: str) -> None:
    rate, start = times(-0.7 / scale, 2.0)
    options = {"step_size": 0.01 * scale} if method == "rk4" else {}
    time, _ = fall(rate, start, 0.5, "direct", ahead=scale, method=method, options=options)
    assert time.item() / scale == pytest.approx(math.log(4.0) / 0.7, rel=1e-6)


def located(tolerance: float | None) -> tuple[float, int]:
    """Where y = 1 - t is said to be zero in a step from 0.9 to 1.2, and how often the event function was asked."""
    calls = 0

    def event(t: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return y[0]

    options = {"step_size": 0.3} if tolerance is None else {"step_size": 0.3, "event_tol": tolerance}
    f, t = lambda t, y: -torch.ones_like(y), times(0.0, 1.0)
    time, _ = qj.odeint(f, times(1.0), t, method="rk4", event_fn=event, options=options)
    return time.item(), calls


def test_the_tolerance_of_the_location_is_relative_to_the_step() -> None:
    found = {tolerance: located(tolerance) for tolerance in (1e-1, 1e-3, 1e-12)}
    for tolerance, (time, _) in found.items():
        assert abs(time - 1.0) <= 0.3 * tolerance + 1e-15
    calls = [count for _, count in found.values()]
    assert calls == sorted(calls)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.nan])
def test_a_tolerance_that_makes_no_sense_is_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match=r"event_tol.*positive"):
        located(tolerance)


@pytest.mark.parametrize("ahead", [0.5, 10.0])
@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_a_solution_ends_at_its_event(gradient: Any, ahead: float) -> None:
    """Also where the event comes later than the time that gives the direction."""
    sol = qj.solve(
        lambda t, y: -0.7 * y,
        times(2.0),
        times(0.0, ahead),
        event_fn=lambda t, y: y[0] - 0.5,
        gradient=gradient,
        rtol=1e-6,
    )
    assert sol.event_time is not None
    end = sol.event_time.item()
    assert sol.ts.tolist() == pytest.approx([0.0, end])
    assert sol(end).item() == pytest.approx(0.5, abs=1e-5)
    assert sol(0.5 * end).item() == pytest.approx(1.0, abs=1e-4)
    with pytest.raises(ValueError, match="outside"):
        sol(1.01 * end)
