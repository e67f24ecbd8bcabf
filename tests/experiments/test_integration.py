"""Rules of integration: exact where they must be, and on the gradient itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import quadjoint as qj
from quadjoint.experiments.integration import COUNTS, RULES, Config, Problem, composite, gauss, monte_carlo


@pytest.mark.parametrize(("rule", "degree"), [("trapezoid", 1), ("simpson", 3), ("boole", 5)])
def test_newton_and_cotes_are_exact_to_their_degree_and_no_further(rule, degree):
    nodes, weights = RULES[rule][0](2)
    for power in range(degree + 1):
        assert weights @ nodes**power == pytest.approx(1 / (power + 1), abs=1e-14)
    assert abs(weights @ nodes ** (degree + 1) - 1 / (degree + 2)) > 1e-6


def test_gauss_is_exact_to_degree_2n_minus_1_on_the_unit_interval():
    nodes, weights = gauss(4)
    assert weights @ nodes**7 == pytest.approx(1 / 8, abs=1e-14) and abs(weights @ nodes**8 - 1 / 9) > 1e-7


def test_weights_sum_to_one_and_points_are_as_many_as_said():
    assert [len(composite((1, 4, 1), n)[0]) for n in (1, 2, 4)] == [3, 5, 9]
    for rule in (composite((7, 32, 12, 32, 7), 3), gauss(5), monte_carlo(COUNTS[0], np.random.default_rng(0))):
        assert rule[1].sum() == pytest.approx(1.0)


def test_the_integral_is_the_gradient_of_the_loss():
    config = Config(width=4, batch=3, dim=2)
    problem = Problem(config)
    (found,) = problem.integral([gauss(30)])
    y0 = qj.odeint(problem.f, problem.end, torch.tensor([1.0, 0.0]), method="dopri8", rtol=1e-11, atol=1e-12)[-1]
    end = qj.odeint(problem.f, y0.detach(), torch.tensor([0.0, 1.0]), method="dopri8", rtol=1e-9, atol=1e-9)[-1]
    grads = torch.autograd.grad(end.square().mean(), list(problem.f.parameters()))
    wanted = torch.cat([g.flatten() for g in grads])
    assert float((found - wanted).norm() / wanted.norm()) < 1e-7
