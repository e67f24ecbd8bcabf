"""Under autocast f may compute in lower precision; states, sums and adjoints have that of the state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from quadjoint.sde import NeuralSDE, WongZakai
from trust.helpers import BACKSOLVED, GRADIENTS, REPLAYED, assert_close, cases

T = torch.linspace(0.0, 1.0, 11)
TIGHT: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-6}
RATE = torch.tensor([0.3, 0.7, 1.1, 1.5])
SOLVES: dict[str, dict[str, Any]] = {
    "dopri5": {},
    "dopri8": {"method": "dopri8"},
    "fixed": {"method": "rk4", "options": {"step_size": 0.05}},
    "implicit": {"method": "kvaerno5"},
    "collocation": {"method": "radauIIA5"},
    "independent": {"independent": True},
    "adams": {"method": "implicit_adams", "options": {"step_size": 0.01}},
    "alf": {"method": "alf", "options": {"step_size": 0.001}},
    "linear": {"options": {"interp": "linear", "step_size": 0.01}, "method": "rk4"},
}


def lower(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled)


def elementwise(t: Tensor, y: Tensor) -> Tensor:
    """Of operations that autocast leaves alone."""
    return -RATE * y


@pytest.mark.parametrize("name", SOLVES)
def test_a_solve_is_as_accurate_as_without(name: str) -> None:
    """As far as f uses nothing that autocast changes: y = exp(-r t)."""
    with lower():
        ys = qj.odeint(elementwise, torch.ones(2, 4), T, **{**TIGHT, **SOLVES[name]})
    assert isinstance(ys, Tensor)
    exact = torch.exp(-RATE * T[:, None, None]).expand(11, 2, 4)
    torch.testing.assert_close(ys, exact, rtol=0.0, atol=1e-5)


def test_compiled_steps_are_as_accurate_as_without() -> None:
    w = torch.eye(4)

    def f(t: Tensor, y: Tensor) -> Tensor:
        return -RATE * y + 0.0 * (y @ w)

    with lower():
        ys = qj.odeint(f, torch.ones(2, 4), T, compile=True, **TIGHT)
    assert isinstance(ys, Tensor)
    torch.testing.assert_close(ys[-1], torch.exp(-RATE).expand(2, 4), rtol=0.0, atol=1e-5)


def test_the_continuous_solution_is_as_accurate_as_without() -> None:
    with lower():
        sol = qj.solve(elementwise, torch.ones(2, 4), T[[0, -1]], **TIGHT)
        middle = sol(T[1:-1])
    torch.testing.assert_close(middle[4], torch.exp(-0.5 * RATE).expand(2, 4), rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("gradient", cases([*GRADIENTS, qj.GaussLegendre(solve="dense"), "reversible"]))
def test_gradients_are_as_accurate_as_without(gradient: Any, within: bool) -> None:
    """Wherever ``backward()`` is called. Torch itself differentiates what "direct" has recorded, in lower precision."""
    options = {**TIGHT, "method": "alf", "rtol": 1e-3} if gradient == "reversible" else TIGHT
    found = []
    for enabled in (True, False):
        w, y0 = RATE.clone().requires_grad_(), torch.ones(2, 4, requires_grad=True)
        with lower(enabled):
            ys = qj.odeint(lambda t, y, w=w: -w * y, y0, T, gradient=gradient, **options)
            loss = ys.square().sum()
        with lower(enabled and within):
            found.append(torch.autograd.grad(loss, [y0, w]))
    assert_close(found[0], found[1], within=1e-3 if within and gradient in ("auto", "direct") else 1e-5)


@pytest.mark.parametrize("gradient", cases(REPLAYED))
def test_second_derivatives_are_as_accurate_as_without(gradient: Any) -> None:
    found = []
    for enabled in (True, False):
        w = RATE.clone().requires_grad_()
        with lower(enabled):
            ys = qj.odeint(lambda t, y, w=w: -w * y, torch.ones(2, 4), T, gradient=gradient, **TIGHT)
            (slope,) = torch.autograd.grad(ys[-1].sum(), w, create_graph=True)
            found.append(torch.autograd.grad(slope.square().sum(), w))
    assert_close(found[0], found[1], within=1e-4)


@pytest.mark.parametrize("gradient", cases([*REPLAYED, *BACKSOLVED]))
def test_functions_of_the_user_are_called_under_the_autocast_of_the_solve(gradient: Any) -> None:
    """Also in the backward pass, which runs outside of it; and without, if only the backward pass runs inside."""
    for solved in (True, False):
        seen, events = set(), set()
        w = RATE.clone().requires_grad_()

        def f(t: Tensor, y: Tensor, w: Tensor = w, seen: set[bool] = seen) -> Tensor:
            seen.add(torch.is_autocast_enabled("cpu"))
            return -w * y

        def event(t: Tensor, y: Tensor, events: set[bool] = events) -> Tensor:
            events.add(torch.is_autocast_enabled("cpu"))
            return y[0, 0] - 0.9

        with lower(solved):
            _, ys = qj.odeint(f, torch.ones(2, 4), T[[0, -1]], gradient=gradient, event_fn=event, **TIGHT)
        with lower(not solved):
            ys.square().sum().backward()
        assert seen == {solved} and events == {solved}


def test_events_are_found_as_accurately_as_without() -> None:
    for independent in (False, True):
        with lower():
            t, _ = qj.odeint(
                elementwise,
                torch.ones(2, 4),
                torch.tensor([0.0, 5.0]),
                event_fn=lambda t, y: y[..., 0] - 0.5 if y.ndim == 2 else y[0, 0] - 0.5,
                independent=independent,
                **TIGHT,
            )
        torch.testing.assert_close(t, torch.full_like(t, 0.6931472 / 0.3), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("store", ["coefficients", "seed"])
def test_paths_of_noise_are_those_of_the_precision_of_the_state(store: Any) -> None:
    """What f is multiplied by is no operation of the user's."""
    sde, found = NeuralSDE(lambda t, y: -y, lambda t, y: torch.ones_like(y)), []
    for enabled in (True, False):
        with lower(enabled):
            found.append(WongZakai(sde, 0.0, 1.0, store=store).odeint(torch.ones(3, 2), T, seed=0, **TIGHT))
    assert_close([found[0]], [found[1]], within=1e-5)
