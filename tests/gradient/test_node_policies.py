"""Quadrature adjoints: every choice of nodes with every trajectory, error control, and rules that users add."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import quadjoint as qj
from gradient.helpers import TIGHT, Driven, Network, flat, gradients, loss, normal, relative, times
from quadjoint.quadrature import gauss_legendre, on_interval

TRAJECTORIES = (qj.Stored(), qj.Backsolve())
T = times(0.0, 0.4, 1.5)


@dataclass(frozen=True)
class ClenshawCurtis:
    """n + 1 Chebyshev points an interval, its ends among them; a rule as a user would add it.

    C. W. Clenshaw and A. R. Curtis, "A method for numerical integration on an automatic computer", 1960.
    """

    n: int = 12
    per = "interval"

    def nodes(self, span: qj.Span) -> list[tuple[float, float]]:
        k = np.arange(self.n + 1)
        x = np.cos(math.pi * k / self.n)
        even = np.arange(0, self.n + 1, 2)
        moments = np.zeros(self.n + 1)
        moments[even] = 2.0 / (1.0 - even**2.0)  # integrals of the Chebyshev polynomials
        weights = np.linalg.solve(np.cos(np.outer(k, np.arccos(x))), moments)
        return on_interval((x, weights), span.start, span.end)


@dataclass(frozen=True)
class Composite:
    """``panels`` Gauss-Legendre rules with six nodes in every step of the backward solve."""

    panels: int = 32
    per = "step"

    def nodes(self, span: qj.Span) -> list[tuple[float, float]]:
        ends = np.linspace(span.start, span.end, self.panels + 1).tolist()
        return [x for i in range(self.panels) for x in on_interval(gauss_legendre(6), ends[i], ends[i + 1])]


@pytest.mark.parametrize("trajectory", TRAJECTORIES)
@pytest.mark.parametrize(
    "nodes",
    [qj.PerStep(), qj.PerStep(5), qj.Heuristic(0.5), qj.ErrorControlled(1e-8), ClenshawCurtis(24), Composite(2)],
)
@pytest.mark.parametrize("t", [T, 1.0 - T])
def test_every_combination_gives_the_gradient(t: torch.Tensor, nodes: Any, trajectory: Any) -> None:
    f, y0 = Driven(), normal(4, 3)
    reference = gradients(f, y0, t, "direct", rtol=1e-11, atol=1e-11)
    found = gradients(f, y0, t, qj.GaussLegendre(nodes, trajectory), **TIGHT)
    assert relative(found, reference) < 1e-6


@pytest.mark.parametrize("seminorm", [False, True])
@pytest.mark.parametrize("trajectory", TRAJECTORIES)
def test_the_integral_in_the_state_goes_with_every_trajectory(trajectory: Any, seminorm: bool) -> None:
    f, y0 = Driven(), normal(4, 3)
    reference = gradients(f, y0, T, "direct", rtol=1e-11, atol=1e-11)
    how = qj.ContinuousAdjoint(trajectory, qj.InState(seminorm))
    assert relative(gradients(f, y0, T, how, **TIGHT), reference) < 1e-6


def test_a_node_at_an_observation_belongs_to_its_own_interval() -> None:
    """The adjoint jumps at observations: a rule with nodes at the ends must see it on the side of the interval."""
    w = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    y0, t = torch.ones(1, dtype=torch.float64), times(0.0, 1.0, 2.0)
    trapezoidal = ClenshawCurtis(1)
    # dy/dt = w, L = y(1) + y(2): the adjoint is 2 on the first interval and 1 on the second, dL/dw = 3.
    ys = qj.odeint(lambda t, y: w + 0.0 * y, y0, t, gradient=qj.GaussLegendre(trapezoidal))
    (found,) = torch.autograd.grad(ys[1:].sum(), w)
    assert float(found) == pytest.approx(3.0, rel=1e-12)


def parameter_gradient(nodes: Any, trajectory: Any, f: Network, **options: Any) -> tuple[torch.Tensor, qj.Stats]:
    sol = qj.solve(f, normal(4, 3), T, gradient=qj.GaussLegendre(nodes, trajectory), rtol=1e-3, atol=1e-3, **options)
    found = torch.autograd.grad(loss(sol.ys), list(f.parameters()))
    return flat(found), sol.stats


@pytest.mark.parametrize("trajectory", TRAJECTORIES)
@pytest.mark.parametrize(("q", "rtol"), [(1, 1e-2), (1, 1e-4), (3, 1e-2), (3, 1e-4), (3, 1e-6), (3, 1e-8)])
def test_error_control_meets_its_tolerance_and_reports_an_upper_bound(q: int, rtol: float, trajectory: Any) -> None:
    f = Driven(3, 8, 4.0)
    fine, _ = parameter_gradient(Composite(), trajectory, f)
    found, stats = parameter_gradient(qj.ErrorControlled(rtol, q), trajectory, f)
    true_error = float((found - fine).norm() / fine.norm())
    assert stats.gradient_error is not None
    assert true_error <= stats.gradient_error + 1e-11 <= rtol + 1e-11


def test_error_control_refines_only_where_it_must() -> None:
    f = Driven(3, 8, 4.0)
    counts = [parameter_gradient(qj.ErrorControlled(r), qj.Stored(), f)[1].quadrature_nodes for r in (1e-2, 1e-6, 1e-9)]
    assert counts[0] < counts[1] < counts[2]
    steps = parameter_gradient(qj.ErrorControlled(1e-2), qj.Stored(), f)[1].backward_accepted_steps
    assert counts[0] == 7 * steps  # three nodes of Gauss and four of its companion


@pytest.mark.parametrize("nodes", [qj.ErrorControlled(1e-12, q=1, max_depth=2), qj.ErrorControlled(1e-17)])
def test_a_tolerance_that_is_missed_is_said(nodes: qj.ErrorControlled) -> None:
    with pytest.warns(qj.QuadjointWarning, match="more than the rtol"):
        _, stats = parameter_gradient(nodes, qj.Backsolve(), Driven())
    assert stats.gradient_error is not None
    assert stats.gradient_error > nodes.rtol


def test_error_control_stops_at_the_precision_of_float32() -> None:
    f = Network().float()
    sol = qj.solve(f, normal(4, 3).float(), T.float(), gradient=qj.GaussLegendre(qj.ErrorControlled(1e-9)))
    with pytest.warns(qj.QuadjointWarning, match="float64"):
        loss(sol.ys).backward()
    assert sol.stats.gradient_error is not None
    assert sol.stats.gradient_error < 1e-5
    assert sol.stats.quadrature_nodes < 200 * sol.stats.backward_accepted_steps


def test_nodes_are_counted() -> None:
    f, steps = Driven(), {}
    for q in (1, 2, 5):
        _, stats = parameter_gradient(qj.PerStep(q), qj.Stored(), f)
        assert stats.quadrature_nodes == q * stats.backward_accepted_steps
        steps[q] = stats.backward_accepted_steps
    assert len(set(steps.values())) == 1
    _, stats = parameter_gradient(qj.Heuristic(0.1), qj.Backsolve(), f)
    lengths = (T.diff() / T[-1]).tolist()
    assert stats.quadrature_nodes == sum(math.ceil(0.1 * stats.forward_evaluations * x) for x in lengths)


def test_tolerances_method_and_options_of_the_backward_solve_can_be_given() -> None:
    f, y0 = Driven(), normal(4, 3)
    reference = gradients(f, y0, T, "direct", rtol=1e-11, atol=1e-11)

    def found(**settings: Any) -> tuple[float, int]:
        worst, steps = 0.0, 0
        for make in (qj.GaussLegendre, qj.Adjoint, qj.Seminorm):
            sol = qj.solve(f, y0, T, gradient=make(**settings), rtol=1e-9, atol=1e-9)
            gs = torch.autograd.grad(loss(sol.ys), list(f.parameters()))
            worst, steps = max(worst, relative(gs, reference[2:])), max(steps, sol.stats.backward_accepted_steps)
        return worst, steps

    loose, few = found(rtol=1e-3, atol=1e-3)
    tight, many = found(rtol=1e-9, atol=1e-9)
    assert tight < 1e-7 < loose < 1e-1
    assert few < many
    assert found(method="bosh3", rtol=1e-7, atol=1e-7)[0] < 1e-5
    assert found(method="rk4", options={"step_size": 0.05})[0] < 1e-5


def test_repeated_solves_have_the_same_nodes() -> None:
    """The second solve remembers its first step size and saves an evaluation, but not a node."""
    f, how = Driven(), qj.GaussLegendre(qj.Heuristic(1.0, max_nodes=1000), qj.Backsolve())
    found = []
    for _ in range(3):
        sol = qj.solve(f, normal(4, 3), T[[0, -1]], gradient=how)
        loss(sol.ys).backward()
        found.append(sol.stats)
    assert found[0].forward_evaluations > found[1].forward_evaluations == found[2].forward_evaluations
    assert found[0].quadrature_nodes == found[1].quadrature_nodes == found[2].quadrature_nodes
    assert found[0].quadrature_nodes == found[0].forward_evaluations
