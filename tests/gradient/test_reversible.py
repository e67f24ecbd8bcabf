"""The asynchronous leapfrog method and its inverse: gradients without stored states, equal to backpropagation's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from gradient.helpers import Driven, Network, loss, normal, relative, times
from quadjoint.solver.dynamics import Dynamics
from quadjoint.solver.methods.catalogue import METHODS
from quadjoint.solver.methods.leapfrog import AsynchronousLeapfrog


def found(f: Network, y0: Tensor, t: Tensor, how: str, options: dict[str, Any], rtol: float = 1e-3) -> list[Tensor]:
    y = y0.clone().requires_grad_()
    if how == "direct" and "step_size" not in options:
        options = {**options, "step_t": t[1:]}  # the reversible method lands on the observations
    ys = qj.odeint(f, y, t, method="alf", gradient=how, options=options, rtol=rtol, atol=rtol)
    return list(torch.autograd.grad(loss(ys), (y, *f.parameters())))


@pytest.mark.parametrize("eta", [1.0, 0.9])
@pytest.mark.parametrize("t", [times(0.0, 1.0), times(0.0, 0.3, 0.35, 1.0), times(1.0, 0.4, 0.0)])
def test_equals_direct(t: Tensor, eta: float) -> None:
    f, y0 = Driven(), normal(4, 3)
    for options in ({}, {"step_size": 0.05}):
        reference = found(f, y0, t, "direct", {"eta": eta, **options})
        assert relative(found(f, y0, t, "reversible", {"eta": eta, **options}), reference) < 1e-9


def test_equals_direct_across_discontinuities() -> None:
    class Switched(Network):
        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return self.net(y) * torch.where(t >= 0.75, 3.0, 1.0)

    f, y0, t = Switched(), normal(4, 3), times(0.0, 0.3, 1.0)
    options = {"jump_t": times(0.75)}
    assert relative(found(f, y0, t, "reversible", options), found(f, y0, t, "direct", options)) < 1e-9


def test_steps_end_where_the_user_wants_them_as_well() -> None:
    f, y0, t = Driven(), normal(4, 3), times(0.0, 0.3, 1.0)
    reference = qj.odeint(f, y0, t, method="alf", gradient="direct", options={"step_t": times(0.3, 0.41)})
    ys = qj.odeint(f, y0, t, method="alf", gradient="reversible", options={"step_t": times(0.41)})
    assert torch.equal(ys, reference)


@pytest.mark.parametrize("eta", [1.0, 0.8, 0.3])
def test_a_step_is_inverted_exactly(eta: float) -> None:
    f, y, v = Driven(), normal(4, 3), normal(4, 3, seed=1)
    method, dynamics = AsynchronousLeapfrog(eta), Dynamics(f, y)
    with torch.no_grad():
        step = method.step(dynamics, 0.2, 0.5, y, carry=v)
        middle = method.middle(step.y1, step.carry, 0.3)
        back_y, back_v = method.inverse(middle, dynamics(0.35, middle), step.carry, 0.3)
    assert torch.allclose(back_y, y, rtol=0, atol=1e-14)
    assert torch.allclose(back_v, v, rtol=0, atol=1e-14)


def test_two_hundred_steps_back_and_forth_lose_only_rounding() -> None:
    f, y0 = Driven(), normal(4, 3)
    options = {"step_size": 0.01}
    reference = found(f, y0, times(0.0, 2.0), "direct", options)
    assert relative(found(f, y0, times(0.0, 2.0), "reversible", options), reference) < 1e-9


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"alf", "scipy_solver"}))
def test_other_methods_are_refused_in_words(method: str) -> None:
    with pytest.raises(ValueError, match="needs method='alf', the one with an inverse"):
        qj.odeint(Network(), normal(2, 3).requires_grad_(), times(0.0, 1.0), gradient="reversible", method=method)


def test_what_has_no_inverse_is_refused_in_words() -> None:
    f, y0 = Network(), normal(2, 3).requires_grad_()
    with pytest.raises(ValueError, match=r"not be 0\.5"):
        qj.odeint(f, y0, times(0.0, 1.0), gradient="reversible", method="alf", options={"eta": 0.5})
    with pytest.raises(ValueError, match="on the grid"):
        t = times(0.0, 0.33, 1.0)
        qj.odeint(f, y0, t, gradient="reversible", method="alf", options={"step_size": 0.25})
    with pytest.raises(ValueError, match="does not support events"):
        qj.odeint(f, y0, times(0.0, 1.0), gradient="reversible", method="alf", event_fn=lambda t, y: y.sum())


@pytest.mark.parametrize(("rate", "eta"), [(1.0, 1.0), (1.0, 0.8), (60.0, 1.0)])
def test_a_reconstruction_that_drifts_from_the_initial_state_is_said(rate: float, eta: float) -> None:
    """Rounding grows on the way back, by exp(rate) and by 1 / |1 - 2 eta| a step: not worth a word, or too much."""
    w = torch.tensor(rate, dtype=torch.float64, requires_grad=True)
    y0 = normal(3)

    def gradient(how: str) -> float:
        ys = qj.odeint(
            lambda t, y: -w * (y - torch.cos(t)),
            y0,
            times(0.0, 1.0),
            method="alf",
            gradient=how,
            options={"eta": eta, "step_size": 0.01},
        )
        return float(torch.autograd.grad(ys[-1].square().sum(), w)[0])

    exact = gradient("direct")
    if (rate, eta) == (1.0, 1.0):
        assert gradient("reversible") == pytest.approx(exact, rel=1e-9)
        return
    with pytest.warns(qj.QuadjointWarning, match="reconstructed end") as said:
        found = gradient("reversible")
    assert len(said) == 1
    assert not abs(found - exact) < 1e-3 * abs(exact)
