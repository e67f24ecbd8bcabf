"""The figures of a solve: forward ones at once, backward ones after backward, and their relations."""

from __future__ import annotations

import pytest
import torch

import quadjoint as qj
from gradient.helpers import ALL, Driven, loss, normal, times

T = times(0.0, 0.4, 1.0)


@pytest.mark.parametrize("how", [*ALL, "reversible"])
def test_figures_are_filled(how: str) -> None:
    f = Driven()
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    handle = f.register_forward_hook(count)
    method = "alf" if how == "reversible" else "dopri5"
    gradient = qj.DiscreteAdjoint(activations=0) if how == "discrete" else how
    sol = qj.solve(f, normal(3, 3), T, gradient=gradient, method=method)
    stats = sol.stats
    assert stats.method == how
    assert stats.forward_evaluations == calls
    assert stats.accepted_steps > 0
    assert stats.backward_evaluations == stats.vjp_state == stats.vjp_params == stats.quadrature_nodes == 0
    assert stats.gradient_error is None
    calls = 0
    loss(sol.ys).backward()
    handle.remove()
    if how == "direct":
        assert calls == stats.backward_evaluations == 0
        return
    assert 0 < calls <= stats.backward_evaluations
    assert stats.vjp_state > 0
    assert stats.vjp_params > 0
    assert (stats.backward_accepted_steps > 0) == (how in ("adjoint", "seminorm", "gq-paper"))
    assert (stats.quadrature_nodes > 0) == (how in ("gq", "gq-paper"))


@pytest.mark.parametrize("how", ["direct", "discrete", "gq"])
def test_a_function_costs_no_more_evaluations_than_a_module(how: str) -> None:
    """Nor than are counted, although the parameters of a function have to be found in its graph."""
    f, calls = Driven(), 0

    def field(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return f(t, y)

    y0 = normal(3, 3)
    counted = qj.solve(field, y0, T, gradient=how).stats.forward_evaluations
    assert counted == calls == qj.solve(f, y0, T, gradient=how).stats.forward_evaluations


def test_a_quadrature_adjoint_needs_fewer_parameter_products_than_the_adjoint() -> None:
    found = {}
    for how in ("gq", "gq-paper", "adjoint", "seminorm"):
        f = Driven(3, 8, 3.0)
        sol = qj.solve(f, normal(3, 3), T, gradient=how, rtol=1e-5, atol=1e-5)
        loss(sol.ys).backward()
        found[how] = sol.stats
    for how in ("gq", "gq-paper"):
        assert found[how].vjp_params < found["seminorm"].vjp_params / 4
    # Without parameters in the error estimate, the steps of the seminorm are those of the paper's method.
    assert found["seminorm"].backward_accepted_steps == found["gq-paper"].backward_accepted_steps
    assert found["adjoint"].backward_accepted_steps >= found["seminorm"].backward_accepted_steps


def test_observations_do_not_break_the_discrete_backward_pass() -> None:
    f, y0 = Driven(), normal(3, 3)
    evaluations = {}
    for count in (2, 60):
        t = torch.linspace(0.0, 1.0, count, dtype=torch.float64)
        sol = qj.solve(f, y0, t, gradient=qj.DiscreteAdjoint(mode="joint"))
        loss(sol.ys).backward()
        evaluations[count] = sol.stats.backward_evaluations
    assert evaluations[60] <= evaluations[2] + 1


def reason(gradient: object, f: torch.nn.Module | None = None, **settings: object) -> str:
    sol = qj.solve(f or Driven(), normal(3, 3), T, gradient=gradient, **settings)  # type: ignore[arg-type]
    loss(sol.ys).backward()
    return sol.stats.reason


@pytest.mark.parametrize("how", ALL)
def test_the_reason_is_that_it_was_asked_for(how: str) -> None:
    assert reason(how).startswith(f"{how} was asked for")


def test_the_reason_says_which_products_were_made() -> None:
    hooked = Driven()
    hooked.net[0].weight.register_hook(lambda g: None)
    assert "joint" not in reason(qj.DiscreteAdjoint(mode="stacked"))
    assert reason(qj.DiscreteAdjoint(mode="stacked"), hooked).endswith("products are joint, as parameters have hooks")
    assert reason("discrete").endswith("products are joint")


def test_the_reason_says_what_a_limit_of_memory_has_changed() -> None:
    """Direct hands over to discrete, which gives up stages."""
    f, y0, t = Driven(), normal(3, 3), torch.linspace(0.0, 4.0, 9, dtype=torch.float64)
    for limit, changed in ((2**24, False), (30_000, True)):
        sol = qj.solve(f, y0, t, gradient=qj.Direct(memory_limit=limit), rtol=1e-6)
        loss(sol.ys).backward()
        assert ("on by discrete" in sol.stats.reason) == changed == (sol.stats.backward_evaluations > 0)
    short = qj.solve(f, y0, t, gradient=qj.DiscreteAdjoint(memory_limit=2000), rtol=1e-6).stats.reason
    assert "stages are computed again" in short


def test_the_reason_says_how_the_collocation_equations_were_solved() -> None:
    class Coupled(Driven):
        def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return super().forward(t, y) + y.mean(0)

    for solve, f, expected in (
        ("dense", Driven(), "small systems, solved at once"),
        ("dense", Coupled(), "small systems were wrong, so it was iterated"),
        ("iterate", Driven(), "iterated"),
    ):
        assert reason(qj.GaussLegendre(solve=solve), f).endswith(f"; {expected}")
