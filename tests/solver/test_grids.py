"""Fixed steps: where they end, what is new after a discontinuity, and what they refuse."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from quadjoint.solver.protocols import Stepper

DTYPE = torch.float64
ONE = torch.ones(1, dtype=DTYPE)


class Leapfrog(Stepper):
    """A method that goes on from the derivative at the middle of the step before."""

    order, adaptive = 2, True

    def step(self, f: Any, t0: float, t1: float, y: Tensor, *, carry: Any = None, **_: Any) -> qj.HermiteStep:
        h, v = t1 - t0, f(t0, y) if carry is None else carry
        middle = f(t0 + 0.5 * h, y + 0.5 * h * v)
        return qj.HermiteStep(f, t0, t1, y0=y, y1=y + h * middle, f0=v, carry=2 * middle - v)


def named(method: Any) -> str:
    return method if isinstance(method, str) else method.name


def switching(t: Tensor, y: Tensor) -> Tensor:
    """1 before t = 0.3, and -2 from there on."""
    return torch.where(t < 0.3, 1.0, -2.0).to(y) * torch.ones_like(y)


def ends(**settings: Any) -> list[float]:
    """Where the steps of a solve over [0, 1] end."""
    found = []

    class Decay(torch.nn.Module):
        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return -y

        def callback_accept_step(self, t: Tensor, y: Tensor, dt: Tensor) -> None:
            found.append(round(float(t + dt), 12))

    qj.odeint(Decay(), ONE, torch.tensor([0.0, 1.0], dtype=DTYPE), **settings)
    return found


@pytest.mark.parametrize("times", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", ["alf", Leapfrog(), "kvaerno3", "rk4"], ids=named)
def test_nothing_is_carried_across_a_discontinuity(method: Any, times: torch.dtype) -> None:
    t = torch.tensor([0.0, 0.75, 1.0], dtype=times)
    options = {"step_size": 0.1, "jump_t": [0.3]}
    ys = qj.odeint(switching, torch.zeros(1, dtype=DTYPE), t, method=method, options=options)
    assert ys[:, 0].tolist() == pytest.approx([0.0, -0.6, -1.1], abs=1e-6)


def test_observations_in_float32_are_discontinuities_to_their_precision() -> None:
    """Without ``perturb`` only evaluations beside the discontinuity are moved to its sides."""
    t = torch.linspace(0.0, 1.0, 11)
    options = {"jump_t": [0.3], "perturb": False}
    ys = qj.odeint(switching, torch.zeros(1), t, method="rk4", options=options)
    assert float(ys[-1]) == pytest.approx(-1.1, abs=1e-6)


@pytest.mark.parametrize("gradient", ["direct", "reversible"])
def test_second_derivatives_are_of_the_steps_that_were_taken(gradient: str) -> None:
    w = torch.tensor(0.7, dtype=DTYPE, requires_grad=True)

    def f(t: Tensor, y: Tensor) -> Tensor:
        return torch.where(t < 0.3, w, -2.0 * w) * y

    found = []
    for again in (False, True):
        t = torch.tensor([0.0, 1.0], dtype=DTYPE)
        options = {"step_size": 0.1, "jump_t": [0.3]}
        ys = qj.odeint(f, ONE, t, method="alf", options=options, gradient=gradient)
        (g,) = torch.autograd.grad(ys[-1].sum(), w, create_graph=again)
        found.append(float(g.detach()))
    assert found[0] == pytest.approx(found[1], rel=1e-12)


@pytest.mark.parametrize("method", ["kvaerno5", "radauIIA5", "alf", Leapfrog()], ids=named)
def test_given_steps_end_at_step_t(method: Any) -> None:
    options = {"step_size": 0.25, "step_t": [0.4, 0.5]}
    assert ends(method=method, options=options) == [0.25, 0.4, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("method", ["kvaerno5", "alf", Leapfrog()], ids=named)
@pytest.mark.parametrize(
    "choice",
    [{"first_step": 0.1}, {"min_step": 0.1}, {"max_step": 0.1}, {"controller": "pi"}, {"safety": 0.8}],
    ids=str,
)
def test_given_steps_are_not_chosen(method: Any, choice: dict[str, Any]) -> None:
    (name,) = choice
    with pytest.raises(ValueError, match=rf"options\['{name}'\] is of steps that are chosen.*options\['step_size'\]"):
        ends(method=method, options={"step_size": 0.1, **choice})


@pytest.mark.parametrize("option", ["jump_t", "step_t"])
@pytest.mark.parametrize("at", [0.01, 0.35])
def test_open_ends_have_no_grid_on_which_further_times_could_lie(option: str, at: float) -> None:
    settings: dict[str, Any] = {"method": "kvaerno5", "event_fn": lambda t, y: y - 0.5}
    with pytest.raises(ValueError, match=rf"options\['{option}'\] with event_fn needs.*options\['horizon'\]"):
        ends(options={"step_size": 0.1, option: [at]}, **settings)
    if option == "jump_t":
        with pytest.raises(ValueError, match=r"options\['jump_t'\] with event_fn needs"):
            ends(options={option: [at]}, **{**settings, "method": "rk4"})
    found = ends(options={"step_size": 0.1, "horizon": 1.0, option: [at]}, **settings)
    assert at in found and all(b - a < 0.1 + 1e-9 for a, b in itertools.pairwise(found))


@pytest.mark.parametrize("kind", ["a list", "float32"])
@pytest.mark.parametrize("end", [1.0, 0.3])
def test_grids_of_another_precision_than_the_times(kind: str, end: float) -> None:
    """Their ends, and points at times that were asked for, are these times."""
    t = torch.tensor([0.0, 0.2 * end, end], dtype=DTYPE)
    settings: dict[str, Any] = {"method": "rk4", "gradient": "direct"}
    made: Any = torch.linspace(0.0, end, 6) if kind == "float32" else [*(0.2 * n * end for n in range(5)), end]
    found = qj.odeint(lambda t, y: -y, ONE, t, options={"grid_constructor": lambda f, y, t: made}, **settings)
    expected = qj.odeint(lambda t, y: -y, ONE, t, options={"step_size": 0.2 * end}, **settings)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=0.0)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("method", ["explicit_adams", "implicit_adams"])
def test_slopes_at_both_ends_are_those_of_the_step(method: str, backwards: bool) -> None:
    """y' = -y between the discontinuities at t = 0 and t = 1, and zero outside, also inside of the last step."""
    t = torch.tensor([0.0, 0.97, 1.0], dtype=DTYPE)
    y0 = torch.ones(1, dtype=DTYPE, requires_grad=True)
    t = 1.0 - t if backwards else t
    ys = qj.odeint(
        lambda t, y: torch.where((t > 0.0) & (t < 1.0), -1.0, 0.0) * y,
        y0,
        t,
        method=method,
        options={"perturb": True, "step_size": 0.05, "max_order": 4},
        gradient="gq",
    )
    sign = 1.0 if backwards else -1.0
    assert ys[:, 0].tolist() == pytest.approx(torch.exp(sign * (t - t[0]).abs()).tolist(), rel=1e-4)
    ys[-1].sum().backward()
    assert float(y0.grad) == pytest.approx(math.exp(sign), rel=1e-5)
