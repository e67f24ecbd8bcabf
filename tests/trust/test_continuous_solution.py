"""The continuous solution sol(t) is differentiable in parameters, initial state and time with every gradient (12.5)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from trust.helpers import DTYPE, GRADIENTS, TIGHT, Field, cases, normal, right_or_refused, times, tolerance, weigh

WORDS = "[Cc]ontinuous"  # an error says that the continuous solution cannot be differentiated


def gradients(gradient: Any, *, observed: bool, asked: tuple[float, ...], **settings: Any) -> list[Tensor | None]:
    """In the initial state, the times asked for and the weights, of what was observed and what was asked for later."""
    f, y0, t = Field(), normal(4, 3).requires_grad_(), times(*asked).requires_grad_()
    sol = qj.solve(f, y0, times(0.0, 0.6, 1.0), gradient=gradient, **{**TIGHT, **settings})
    loss = weigh(sol(t))
    if observed:
        loss = loss + 2.0 * weigh(sol.ys)
    return list(torch.autograd.grad(loss, [y0, t, *f.parameters()], allow_unused=True))


@pytest.mark.parametrize("observed", [False, True], ids=["alone", "with observations"])
@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_times_asked_for_later_are_observations_too(gradient: Any, observed: bool) -> None:
    asked = (0.0, 0.1, 0.45, 0.6, 0.93, 1.0)
    wanted = gradients("direct", observed=observed, asked=asked)
    assert all(g is not None for g in wanted)
    right_or_refused(
        lambda: gradients(gradient, observed=observed, asked=asked), wanted, within=tolerance(gradient), words=WORDS
    )


@pytest.mark.parametrize(
    ("method", "gradient"),
    cases(["rk4", "dopri8", "bosh3"], ["discrete", "gq", "adjoint"]),
)
def test_methods_of_other_orders(method: str, gradient: Any) -> None:
    options = {"options": {"step_size": 0.05}} if method == "rk4" else {}
    wanted = gradients("direct", observed=True, asked=(0.33,), method=method, **options)
    right_or_refused(
        lambda: gradients(gradient, observed=True, asked=(0.33,), method=method, **options),
        wanted,
        within=tolerance(gradient),
        words=WORDS,
    )


def decay(gradient: Any, **settings: Any) -> tuple[Tensor, Tensor, qj.Solution]:
    """dy/dt = -w y from y0 = a: the state at t is a exp(-w t)."""
    w, a = (torch.tensor(x, dtype=DTYPE, requires_grad=True) for x in (0.8, 1.5))
    sol = qj.solve(lambda t, y: -w * y, a.reshape(1), times(0.0, 1.0), gradient=gradient, **{**TIGHT, **settings})
    return w, a, sol


EVERY = [(g, "dopri5") for g in GRADIENTS] + [("reversible", "alf"), ("gq", "scipy_solver"), ("adjoint", "fixed_adams")]


@pytest.mark.parametrize(
    "pair",
    cases(EVERY),
)
def test_the_sum_of_an_observation_and_a_time_in_between(pair: tuple[Any, str]) -> None:
    gradient, method = pair
    options = {"step_size": 0.01} if method == "fixed_adams" else {}

    def compute() -> list[Tensor | None]:
        w, a, sol = decay(gradient, method=method, options=options)
        (sol.ys[-1].sum() + sol(0.5).sum()).backward()
        return [w.grad, a.grad]

    exact = [-1.5 * (math.exp(-0.8) + 0.5 * math.exp(-0.4)), math.exp(-0.8) + math.exp(-0.4)]
    wanted = [torch.tensor(x, dtype=DTYPE) for x in exact]
    right_or_refused(compute, wanted, within=1e-3, words=WORDS)


@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_second_derivatives_of_the_continuous_solution(gradient: Any) -> None:
    """a exp(-w t) has the derivatives t^2, -t / a and w^2 times itself in w twice, in w and a, and in t twice."""
    w, a, sol = decay(gradient)
    t = torch.tensor(0.3, dtype=DTYPE, requires_grad=True)

    def compute() -> list[Tensor | None]:
        in_w, in_t = torch.autograd.grad(sol(t).sum(), (w, t), create_graph=True)
        again = torch.autograd.grad(in_w, (w, a), retain_graph=True, allow_unused=True)
        return [*again, *torch.autograd.grad(in_t, t)]

    y = 1.5 * math.exp(-0.8 * 0.3)
    wanted = [torch.tensor(x * y, dtype=DTYPE) for x in (0.3**2, -0.3 / 1.5, 0.8**2)]
    right_or_refused(compute, wanted, within=1e-3, words=WORDS)


@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_the_continuous_solution_of_a_tuple(gradient: Any) -> None:
    w = torch.tensor(0.8, dtype=DTYPE, requires_grad=True)

    def compute() -> list[Tensor | None]:
        start = (torch.ones(2, dtype=DTYPE), torch.ones(3, 1, dtype=DTYPE))
        sol = qj.solve(lambda t, y: (-w * y[0], w * y[1]), start, times(0.0, 1.0), gradient=gradient, **TIGHT)
        left, right = sol(0.5)
        loss = left.sum() + right.sum() + sol.ys[0][-1].sum()
        return list(torch.autograd.grad(loss, w))

    exact = -2 * 0.5 * math.exp(-0.4) + 3 * 0.5 * math.exp(0.4) - 2 * math.exp(-0.8)
    right_or_refused(compute, [torch.tensor(exact, dtype=DTYPE)], within=1e-3, words=WORDS)
