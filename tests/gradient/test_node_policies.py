"""The paper's quadrature adjoint: every choice of nodes, and rules that users add."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import quadjoint as qj
from gradient.helpers import TIGHT, Driven, gradients, loss, normal, relative, times
from quadjoint.quadrature import gauss_legendre, on_interval

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


@pytest.mark.parametrize(
    "integral",
    [
        *(qj.Quadrature(n) for n in (qj.PerStep(), qj.PerStep(5), qj.Heuristic(0.5), ClenshawCurtis(24), Composite(2))),
        qj.InState(),
        qj.InState(seminorm=True),
    ],
)
@pytest.mark.parametrize("t", [T, 1.0 - T])
def test_every_integral_gives_the_gradient(t: torch.Tensor, integral: Any) -> None:
    f, y0 = Driven(), normal(4, 3)
    reference = gradients(f, y0, t, "direct", rtol=1e-11, atol=1e-11)
    assert relative(gradients(f, y0, t, qj.ContinuousAdjoint(integral), **TIGHT), reference) < 1e-6


def test_a_node_at_an_observation_belongs_to_its_own_interval() -> None:
    """The adjoint jumps at observations: a rule with nodes at the ends must see it on the side of the interval."""
    w = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    y0, t = torch.ones(1, dtype=torch.float64), times(0.0, 1.0, 2.0)
    trapezoidal = ClenshawCurtis(1)
    # dy/dt = w, L = y(1) + y(2): the adjoint is 2 on the first interval and 1 on the second, dL/dw = 3.
    ys = qj.odeint(lambda t, y: w + 0.0 * y, y0, t, gradient=qj.QuadratureAdjoint(trapezoidal))
    (found,) = torch.autograd.grad(ys[1:].sum(), w)
    assert float(found) == pytest.approx(3.0, rel=1e-12)


def test_nodes_are_counted() -> None:
    f, steps = Driven(), {}

    def figures(nodes: Any) -> qj.Stats:
        sol = qj.solve(f, normal(4, 3), T, gradient=qj.QuadratureAdjoint(nodes), rtol=1e-3, atol=1e-3)
        loss(sol.ys).backward()
        return sol.stats

    for q in (1, 2, 5):
        stats = figures(qj.PerStep(q))
        assert stats.quadrature_nodes == q * stats.backward_accepted_steps
        steps[q] = stats.backward_accepted_steps
    assert len(set(steps.values())) == 1
    stats = figures(qj.Heuristic(0.1))
    lengths = (T.diff() / T[-1]).tolist()
    assert stats.quadrature_nodes == sum(math.ceil(0.1 * stats.forward_evaluations * x) for x in lengths)


def test_tolerances_method_and_options_of_the_backward_solve_can_be_given() -> None:
    f, y0 = Driven(), normal(4, 3)
    reference = gradients(f, y0, T, "direct", rtol=1e-11, atol=1e-11)

    def found(**settings: Any) -> tuple[float, int]:
        worst, steps = 0.0, 0
        for make in (qj.QuadratureAdjoint, qj.Adjoint, qj.Seminorm):
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
