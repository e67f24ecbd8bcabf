"""Combinations of gradients, states and options that gave wrong numbers (12.9 to 12.15)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from quadjoint import torchdiffeq as dropin
from trust.helpers import (
    DTYPE,
    GRADIENTS,
    TIGHT,
    Field,
    assert_close,
    cases,
    normal,
    right_or_refused,
    times,
    tolerance,
    weigh,
)


class Pendulum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(1.4, dtype=DTYPE))

    def forward(self, t: Tensor, y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return y[1], -(self.w**2) * torch.sin(y[0])


def test_a_neural_ode_of_a_tuple_returns_the_tuple_at_the_end() -> None:
    model, start = qj.nn.NeuralODE(Pendulum(), rtol=1e-6, atol=1e-6), (normal(5), normal(5, seed=1))
    end = model(start)
    assert isinstance(end, tuple) and [part.shape for part in end] == [(5,), (5,)]
    for part, trajectory in zip(end, model.trajectory(start, times(0.0, 1.0)), strict=True):
        torch.testing.assert_close(part, trajectory[-1], rtol=0, atol=0)


# Results that are changed in place ------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_a_result_that_is_changed_in_place(gradient: Any) -> None:
    """Three times the states, in place or not, have the same gradient; or the change is refused."""

    def gradients(gradient: Any, in_place: bool) -> list[Tensor]:
        f, y0 = Field(), normal(4, 3).requires_grad_()
        ys = qj.odeint(f, y0, times(0.0, 0.4, 1.0), gradient=gradient, **TIGHT)
        ys = ys.mul_(3.0) if in_place else 3.0 * ys
        return list(torch.autograd.grad(weigh(ys), [y0, *f.parameters()]))

    wanted = gradients("direct", in_place=False)
    right_or_refused(lambda: gradients(gradient, in_place=True), wanted, within=tolerance(gradient))


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_a_solve_with_a_single_time_returns_no_view_of_the_initial_state(gradient: Any, recorded: bool) -> None:
    y0 = normal(4, 3).requires_grad_(recorded)
    before = y0.detach().clone()
    with torch.set_grad_enabled(recorded):
        ys = qj.odeint(Field(), y0, times(0.0), gradient=gradient)
    ys.detach().mul_(3.0)
    assert torch.equal(y0.detach(), before)


# Complex parameters ---------------------------------------------------------------------------------------------------


class Spectral(nn.Module):
    """A real state, filtered by complex weights in Fourier space."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.complex(normal(4), normal(4, seed=1)))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(torch.tanh(y)) * self.weight, n=y.shape[-1])


@pytest.mark.parametrize(
    "gradient",
    cases(GRADIENTS),
)
def test_a_complex_parameter_of_a_real_state(gradient: Any) -> None:
    found = []
    for how in ("direct", gradient):
        f, y0 = Spectral(), normal(3, 6).requires_grad_()
        ys = qj.odeint(f, y0, times(0.0, 0.4, 1.0), gradient=how, **TIGHT)
        found.append(torch.autograd.grad(weigh(ys), [y0, f.weight]))
    assert_close(found[1], found[0], within=tolerance(gradient))


# Learnable times ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "gradient"),
    cases(["rk4", "dopri5"], GRADIENTS),
)
def test_second_derivatives_in_learnable_times(method: str, gradient: Any) -> None:
    """y = exp(t0 - t1): every second derivative in the two times is plus or minus y itself, 0.3679."""
    t, y0 = times(0.0, 1.0).requires_grad_(), torch.ones(1, dtype=DTYPE, requires_grad=True)
    options = {"step_size": 0.05} if method == "rk4" else {}
    ys = qj.odeint(lambda t, y: -y, y0, t, method=method, gradient=gradient, options=options, **TIGHT)
    (first,) = torch.autograd.grad(ys[-1].sum(), t, create_graph=True)
    second = [torch.autograd.grad(g, (t, y0), retain_graph=True) for g in first]
    y = math.exp(-1.0)
    assert first.tolist() == pytest.approx([y, -y], rel=1e-3)
    assert [in_t.tolist() for in_t, _ in second] == [pytest.approx([y, -y], rel=1e-3), pytest.approx([-y, y], rel=1e-3)]
    assert [in_y.item() for _, in_y in second] == pytest.approx([y, -y], rel=1e-3)


# Settings of the backward solve ---------------------------------------------------------------------------------------


class Counted(Field):
    calls = 0

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(t, y)


def backward_calls(make: Any, rtol: float) -> int:
    """Evaluations of f in the backward pass of a solve by SciPy."""
    f = Counted()
    ys = make(f, rtol)
    forward = f.calls
    ys.sum().backward()
    return f.calls - forward


def native(kind: Any) -> Any:
    def make(f: nn.Module, rtol: float) -> Tensor:
        how = kind(rtol=rtol, atol=rtol)
        return qj.odeint(f, normal(2, 3), times(0.0, 1.0), method="scipy_solver", rtol=1e-6, atol=1e-6, gradient=how)

    make.__name__ = kind.__name__
    return make


def by_torchdiffeq(f: nn.Module, rtol: float) -> Tensor:
    return dropin.odeint_adjoint(
        f,
        normal(2, 3),
        times(0.0, 1.0),
        method="scipy_solver",
        options={"solver": "RK45"},
        rtol=1e-6,
        atol=1e-6,
        adjoint_rtol=rtol,
        adjoint_atol=rtol,
        gradient="adjoint",
    )


@pytest.mark.parametrize(
    "make",
    cases([native(qj.Adjoint), native(qj.Seminorm), native(qj.QuadratureAdjoint), by_torchdiffeq]),
)
def test_scipy_solves_backwards_to_the_tolerances_asked_for(make: Any) -> None:
    assert backward_calls(make, 1e-2) < backward_calls(make, 1e-6) < backward_calls(make, 1e-10)


# The asynchronous leapfrog with damping -------------------------------------------------------------------------------


def turn(**settings: Any) -> float:
    """The error of a quarter turn or so on the circle."""
    f, t = lambda t, y: torch.stack([y[1], -y[0]]), times(0.0, 2.0)
    ys = qj.odeint(f, times(1.0, 0.0), t, method="alf", **settings)
    return float((ys[-1] - times(math.cos(2.0), -math.sin(2.0))).norm())


@pytest.mark.parametrize(("eta", "order"), [(1.0, 2), (0.9, 1), (0.6, 1)])
def test_damping_makes_the_leapfrog_a_method_of_first_order(eta: float, order: int) -> None:
    coarse, fine = (turn(options={"step_size": 2.0 / n, "eta": eta}) for n in (100, 400))
    assert math.log(coarse / fine, 4) == pytest.approx(order, abs=0.02)


@pytest.mark.parametrize("eta", cases([1.0, 0.9, 0.6]))
def test_the_error_of_the_leapfrog_follows_the_tolerance(eta: float) -> None:
    """The slope of the logarithms is one: a tenth of the tolerance, a tenth of the error."""
    loose, tight = (turn(rtol=tol, atol=tol, options={"eta": eta}) for tol in (1e-2, 1e-4))
    assert math.log10(loose / tight) / 2 > 0.8


# Discontinuities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_a_known_discontinuity_does_not_disturb_the_parameter_integral(gradient: Any) -> None:
    """dy/dt = w y before t = 0.3 and -6 w y after it: y(1) = exp(-3.9 w), whose derivative is -3.9 y."""
    w = torch.tensor(0.5, dtype=DTYPE, requires_grad=True)
    ys = qj.odeint(
        lambda t, y: torch.where(t < 0.3, w, -6.0 * w) * y,
        torch.ones(1, dtype=DTYPE),
        times(0.0, 1.0),
        gradient=gradient,
        options={"jump_t": [0.3]},
        rtol=1e-9,
        atol=1e-9,
    )
    wanted = torch.tensor(-3.9 * math.exp(-1.95), dtype=DTYPE)
    assert_close(torch.autograd.grad(ys[-1].sum(), w), [wanted], within=1e-3)
