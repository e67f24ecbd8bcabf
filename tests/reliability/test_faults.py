"""Misbehaving dynamics: the right result or an error in words, and nothing left behind."""

from __future__ import annotations

import math

import pytest
import torch

import quadjoint as qj
from reliability.faults import FAULTS, GRADIENTS, Fault, attempt, difference, initial, method_of
from reliability.hostile import TIMES, Benign, Dropout

# These share their passes with the others: gq-paper with gq, seminorm with adjoint, auto with direct.
RELATED = ("gq-paper", "seminorm", "auto")
METHODS = [pytest.param(g, marks=pytest.mark.slow if g in RELATED else ()) for g in GRADIENTS]


@pytest.mark.parametrize("gradient", METHODS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_ends_well(fault: Fault, gradient: str) -> None:
    f = fault.make()
    state = torch.get_rng_state()
    error, pattern = fault.expected(gradient)
    if error is not None:
        with pytest.raises(error, match=pattern):
            attempt(fault, f, gradient)
    else:
        found = attempt(fault, f, gradient)
        if fault.poison:
            assert all(bool(g.isnan().any()) for g in found[1].values())
        else:
            reference = attempt(fault, f, "direct", method_of(gradient))
            assert difference(found, reference) < fault.tolerance
    assert torch.is_grad_enabled()
    if "dropout" not in fault.name:
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("gradient", ["direct", "gq"])
@pytest.mark.parametrize("fault", [f for f in FAULTS if f.error is not None], ids=lambda fault: fault.name)
def test_after_a_failure_the_same_function_is_solved_as_if_nothing_had_been(fault: Fault, gradient: str) -> None:
    f, fresh = fault.make(), fault.make()
    error, _ = fault.expected(gradient)
    if error is not None:
        with pytest.raises(error):
            attempt(fault, f, gradient)
    f.armed = fresh.armed = False
    sound = Fault("none", Benign)
    again, never = attempt(sound, f, gradient), attempt(sound, fresh, gradient)
    assert difference(again, never) == 0.0


@pytest.mark.parametrize("gradient", ["discrete", "gq", "gq-paper", "adjoint", "seminorm"])
def test_dropout_with_fixed_steps_is_refused_where_the_backward_pass_evaluates_again(gradient: str) -> None:
    with pytest.raises(ValueError, match="draws random numbers"):
        qj.odeint(Dropout(), initial(), TIMES, method="rk4", gradient=gradient)


def test_dropout_with_fixed_steps_is_differentiated_directly() -> None:
    f = Dropout()
    qj.odeint(f, initial(), TIMES, method="rk4", gradient="direct").sum().backward()
    assert f.W.grad is not None and bool(f.W.grad.isfinite().all())


def test_random_numbers_drawn_elsewhere_are_not_blamed_on_the_dynamics() -> None:
    class Noisy(Benign):
        def fault(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            torch.rand(1)  # as another thread might
            return self.benign(y)

    ys = qj.odeint(Noisy(), initial(), TIMES, gradient="discrete")
    assert ys.requires_grad


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_inference_mode_solves_and_its_tensors_can_be_started_from(gradient: str) -> None:
    f, y0 = Benign(), initial()
    settings = {"method": method_of(gradient), "gradient": gradient}
    with torch.no_grad():
        expected = qj.odeint(f, y0, TIMES, **settings)
    with torch.inference_mode():
        found = qj.odeint(f, initial(), TIMES, **settings)
    assert torch.equal(found, expected)
    # Autograd refuses to record what was made in inference mode; a copy can be recorded.
    loss = qj.odeint(f, found[-1].clone(), TIMES, **settings).sum()
    loss.backward()
    assert f.W.grad is not None and bool(f.W.grad.isfinite().all())


@pytest.mark.parametrize("mu", [1000.0])
def test_a_stiff_problem_is_solved_by_the_implicit_method_that_the_error_names(mu: float) -> None:
    def van_der_pol(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])

    y0, t = torch.tensor([2.0, 0.0], dtype=torch.float64), torch.tensor([0.0, 100.0], dtype=torch.float64)
    with pytest.raises(qj.SolveError, match="method='kvaerno5'"):
        qj.odeint(van_der_pol, y0, t, options={"max_num_steps": 500})
    with torch.no_grad():
        end = qj.odeint(van_der_pol, y0, t, method="kvaerno5", rtol=1e-8)[-1]
    # On the slow manifold x' = x / (mu (1 - x^2)), so ln x - x^2 / 2 = t / mu + const up to O(1 / mu^2).
    x = float(end[0])
    assert math.isclose(math.log(x) - x * x / 2, math.log(2.0) - 2.0 + 100.0 / mu, abs_tol=1e-5)
