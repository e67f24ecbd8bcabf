"""The initial state may be a parameter of f, be used by f itself, or share what it was computed from with f."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from trust.helpers import DTYPE, GRADIENTS, TIGHT, assert_close, cases, normal, times, tolerance

T = times(0.0, 1.0)
LEAN = qj.DiscreteAdjoint(activations=0)


class Started(nn.Module):
    """dy/dt = -w y from a start that is a parameter of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(times(1.0, 0.5))
        self.w = nn.Parameter(torch.tensor(0.7, dtype=DTYPE))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return -self.w * y


@pytest.mark.parametrize("gradient", cases([*GRADIENTS, LEAN]))
def test_a_parameter_of_f_as_initial_state(gradient: Any) -> None:
    """y(1) = y0 exp(-w)."""
    f = Started()
    ys = qj.odeint(f, f.start, T, gradient=gradient, **TIGHT)
    in_start, in_w = torch.autograd.grad(ys[-1].sum(), (f.start, f.w))
    wanted = math.exp(-0.7) * torch.ones(2, dtype=DTYPE)
    assert_close([in_start, in_w], [wanted, -1.5 * wanted[0]], within=max(1e-4, tolerance(gradient)))


@pytest.mark.parametrize("gradient", cases([*GRADIENTS, LEAN]))
def test_a_rate_computed_from_the_initial_state(gradient: Any) -> None:
    def found(gradient: Any) -> Tensor:
        y0 = times(1.0, 0.5).requires_grad_()
        c = 0.3 * y0.sum()
        ys = qj.odeint(lambda t, y: -c * y, y0, T, gradient=gradient, **TIGHT)
        return torch.autograd.grad(ys[-1].square().sum(), y0)[0]

    assert_close([found(gradient)], [found("direct")], within=tolerance(gradient))


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("method", ["dopri5", "kvaerno5"])
@pytest.mark.parametrize("gradient", cases(("direct", "discrete", LEAN, "gq", "adjoint")))
def test_f_may_use_the_initial_state_itself(gradient: Any, method: str, create_graph: bool) -> None:
    """With dy/dt = -(y - y0) the state rests at y0."""
    y0 = times(1.0, 0.5).requires_grad_()
    ys = qj.odeint(lambda t, y: -(y - y0), y0, T, method=method, gradient=gradient, **TIGHT)
    (found,) = torch.autograd.grad(ys[-1].sum(), y0, create_graph=create_graph)
    assert_close([found], [torch.ones(2, dtype=DTYPE)], within=1e-6)


@pytest.mark.parametrize("gradient", cases(("direct", "discrete", "gq", "adjoint")))
def test_f_may_use_a_part_of_the_initial_state(gradient: Any) -> None:
    a, b = times(1.0, 0.5).requires_grad_(), times(0.2).requires_grad_()
    ys = qj.odeint(lambda t, y: (-(y[0] - a), -y[1]), (a, b), T, gradient=gradient, **TIGHT)
    found = torch.autograd.grad(ys[0][-1].sum() + ys[1][-1].sum(), (a, b))
    assert_close(found, [torch.ones(2, dtype=DTYPE), math.exp(-1.0) * times(1.0)], within=1e-4)


@pytest.mark.parametrize("gradient", cases([*GRADIENTS, LEAN]))
def test_a_condition_and_an_initial_state_of_one_encoder(gradient: Any) -> None:
    """The condition, and not the weights of the encoder, is what f is differentiated in."""

    def found(gradient: Any) -> tuple[qj.Solution, list[Tensor]]:
        torch.manual_seed(0)
        encoder = nn.Linear(5, 6, dtype=DTYPE)
        h = encoder(normal(4, 5))
        y0, c = h[:, :3], h[:, 3:]
        sol = qj.solve(lambda t, y: torch.tanh(y) + c, y0, T, gradient=gradient, **TIGHT)
        wanted = [c, h, *encoder.parameters()]
        return sol, list(torch.autograd.grad(sol.ys.square().sum(), wanted))

    assert_close(found(gradient)[1], found("direct")[1], within=tolerance(gradient))


def test_what_only_the_initial_state_depends_on_is_no_parameter() -> None:
    encoder = nn.Linear(5, 6, dtype=DTYPE)
    h = encoder(normal(4, 5))
    y0, c = h[:, :3], h[:, 3:]
    ys = qj.odeint(lambda t, y: torch.tanh(y) + c, y0, T, gradient="adjoint")
    behind = [getattr(node, "variable", None) for node, _ in ys.grad_fn.next_functions]
    assert not any(x is p for x in behind for p in encoder.parameters())


class Split(qj.Stepper):
    """dy/dt = -y + f(t, y): half a step of decay, a step of Euler from there, half a step of decay."""

    order = 1

    def step(
        self,
        f: Any,
        t0: float,
        t1: float,
        y: Tensor,
        *,
        carry: Any = None,
        nudge: Any = (0, 0),
        clock: Any = None,
    ) -> qj.HermiteStep:
        h = t1 - t0
        moved = y * math.exp(-0.5 * h)
        y1 = (moved + h * f(t0, moved)) * math.exp(-0.5 * h)
        return qj.HermiteStep(f, t0, t1, y0=y, y1=y1, f0=(y1 - y) / h)


@pytest.mark.parametrize("gradient", cases(("direct", "gq")))
def test_a_stepper_that_begins_at_another_state(gradient: Any) -> None:
    """The evaluation made before the solve answers for the initial state alone."""
    y0, t, w = times(1.0, 0.5), torch.linspace(0.0, 1.0, 5, dtype=DTYPE), times(0.7)[0].requires_grad_()

    def f(t: Tensor, y: Tensor) -> Tensor:
        return -w * y * y

    with torch.no_grad():
        wanted = qj.odeint(f, y0, t, method=Split())
    assert torch.equal(qj.odeint(f, y0, t, method=Split(), gradient=gradient), wanted)
