"""Methods given as objects: tableaus and steppers of one's own."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import quadjoint as qj
from quadjoint.solver.methods.tableaus import TABLEAUS

TIMES = torch.linspace(0.0, 2.0, 6, dtype=torch.float64)
GRADIENTS = ("direct", "discrete", "gq", "gq-paper", "adjoint", "seminorm")


def gradients(gradient: Any = "direct", **settings: Any) -> tuple[Tensor, Tensor]:
    """States of y' = -w y + sin t, and the gradient of their squares in w."""
    w = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    ys = qj.odeint(
        lambda t, y: -w * y + torch.sin(t), torch.ones_like(w).detach(), TIMES, gradient=gradient, **settings
    )
    (found,) = torch.autograd.grad(ys.square().sum(), w)
    return ys.detach(), found


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("name", ["dopri5", "bosh3", "rk4"])
def test_a_tableau_is_its_name(name: str, gradient: str) -> None:
    for given, found in zip(gradients(gradient, method=TABLEAUS[name]), gradients(gradient, method=name), strict=True):
        assert torch.equal(given, found)


def test_options_of_a_tableau_are_those_of_its_name() -> None:
    for name, options in [("dopri5", {"interp": "quintic"}), ("rk4", {"interp": "linear", "step_size": 0.15})]:
        given, found = gradients(method=TABLEAUS[name], options=options), gradients(method=name, options=options)
        assert torch.equal(given[0], found[0]) and torch.equal(given[1], found[1])
    with pytest.raises(ValueError, match=r"'step_size'.* is not an option"):
        gradients(method=TABLEAUS["dopri5"], options={"step_size": 0.1})


def test_times_of_each_sample_with_a_tableau() -> None:
    t = torch.tensor([[0.0, 0.5, 1.0], [0.0, 1.0, 3.0]], dtype=torch.float64)
    y0 = torch.ones(2, 1, dtype=torch.float64)
    ys = qj.odeint(lambda t, y: -y, y0, t, method=TABLEAUS["tsit5"], rtol=1e-9, atol=1e-9)
    assert torch.allclose(ys[..., 0], torch.exp(-t.T), atol=1e-7)


@pytest.mark.parametrize("name", [name for name, tableau in TABLEAUS.items() if tableau.explicit and tableau.order > 1])
def test_a_tableau_without_dense_output_gets_the_cubic_hermite_polynomial(name: str) -> None:
    """Its weights are those of y0, y1 and the slopes at both ends, which stages give."""
    tableau = dataclasses.replace(TABLEAUS[name], dense=None, c_extra=None, a_extra=None, dense_order=0)
    assert tableau.dense_order == min(tableau.order, 3)
    assert tableau.fsal == (tableau.extra_stages == 0)
    if tableau.explicit:
        assert tableau.fsal != tableau.first_extra_is_next
    inputs = np.vstack([np.pad(tableau.a, ((0, 0), (0, tableau.extra_stages))), tableau.a_extra])
    end = np.append(tableau.b, np.zeros(tableau.extra_stages))
    at_start, at_end = (int(np.flatnonzero((inputs == x).all(axis=1))[-1]) for x in (np.zeros(len(end)), end))
    for theta in (0.0, 0.2, 0.7, 1.0):
        expected = end * theta**2 * (3 - 2 * theta)
        expected[at_start] += theta * (1 - theta) ** 2
        expected[at_end] += theta**2 * (theta - 1)
        assert tableau.dense_weights([theta])[0] == pytest.approx(expected, abs=1e-14)


def test_states_inside_of_steps_without_dense_output() -> None:
    """A cubic of order three: halving the steps divides the error between grid points by sixteen."""
    kutta = qj.ButcherTableau(
        name="kutta3", order=3, c=[0, 0.5, 1], a=[[0, 0, 0], [0.5, 0, 0], [-1, 2, 0]], b=[1 / 6, 2 / 3, 1 / 6]
    )
    errors = []
    for n in (10, 20, 40):
        t = torch.tensor([0.0, 0.5 / n, 1.0], dtype=torch.float64)
        y = qj.odeint(lambda t, y: y, torch.ones(1).double(), t, method=kutta, options={"step_size": 1 / n})[1]
        errors.append(abs(float(y) - float(torch.exp(t[1]))))
    assert np.allclose(np.diff(np.log2(errors)), -4, atol=0.2)


def test_a_tableau_is_named_in_messages() -> None:
    tableau = dataclasses.replace(TABLEAUS["rk4"], name="mine")
    with pytest.raises(ValueError, match=r"needs method='alf'.*got method='mine'"):
        gradients("reversible", method=tableau)


def test_two_tableaus_of_one_name_are_told_apart() -> None:
    assert dataclasses.replace(TABLEAUS["rk4"], name="rk").numbers == TABLEAUS["rk4"].numbers
    assert TABLEAUS["heun2"].numbers != TABLEAUS["midpoint"].numbers != TABLEAUS["adaptive_heun"].numbers


class Taylor(qj.Stepper):
    """y1 = y0 + h f + h^2/2 (f_t + f_y f), the method of order two; an error estimate is its last term."""

    order = 2

    def __init__(self, adaptive: bool = False) -> None:
        self.adaptive = adaptive
        self.begun = 0

    def step(
        self, f: Any, t0: float, t1: float, y: Tensor, *, carry: Any = None, nudge: Any = (0, 0), clock: Any = None
    ) -> qj.HermiteStep:
        h = t1 - t0
        self.begun += carry is None
        f0 = f(t0, y, nudge[0]) if carry is None else carry
        slope = (f(t0 + 1e-4 * h, y + 1e-4 * h * f0) - f0) / (1e-4 * h)
        bend = 0.5 * h * h * slope
        y1 = y + h * f0 + bend
        f1 = f(t1, y1, nudge[1])
        return qj.HermiteStep(f, t0, t1, y0=y, y1=y1, f0=f0, f1=f1, carry=f1, retry=f0, error=bend.detach())


def test_a_stepper_of_ones_own_has_its_order() -> None:
    exact = gradients(method="dopri8", rtol=1e-12, atol=1e-12)
    for gradient in ("direct", "gq", "adjoint"):
        errors = []
        for n in (16, 32):
            found = gradients(gradient, method=Taylor(), options={"step_size": 0.4 / n})
            errors.append([float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)])
        assert np.allclose(np.log2(np.array(errors[0]) / errors[1]), 2, atol=0.3), gradient


def test_an_adaptive_stepper_of_ones_own() -> None:
    stepper = Taylor(adaptive=True)
    exact, _ = gradients(method="dopri8", rtol=1e-12, atol=1e-12)
    ys, _ = gradients(method=stepper, rtol=1e-5, atol=1e-5, options={"first_step": 0.5})
    assert (ys - exact).abs().max() < 1e-3
    assert stepper.begun == 1, "a rejected step and the next one go on from what is known"


def test_auto_takes_what_a_stepper_allows() -> None:
    w = torch.ones(1, requires_grad=True)
    sol = qj.solve(lambda t, y: -w * y, torch.ones(1), torch.linspace(0, 1, 9), method=Taylor())
    assert sol.stats.method == "direct" and "'Taylor' cannot be transposed" in sol.stats.reason
    with pytest.raises(ValueError, match="'discrete' transposes Runge-Kutta steps, which method 'Taylor' does not"):
        gradients("discrete", method=Taylor())


def test_steppers_that_are_none() -> None:
    class Unfinished(qj.Stepper):
        pass

    with pytest.raises(ValueError, match="The stepper Unfinished needs an attribute 'order'"):
        gradients(method=Unfinished())
    with pytest.raises(ValueError, match=r"is not known.*of a class based on qj.Stepper"):
        gradients(method=Taylor)
    with pytest.raises(ValueError, match=r"options\['eta'\] is not an option of method .*Taylor"):
        gradients(method=Taylor(), options={"eta": 1.0})
