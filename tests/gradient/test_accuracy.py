"""How far the gradients are from the exact ones, on networks whose dynamics are mild, fast, and hard to reverse."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from gradient.helpers import Driven, Network, flat, normal, times

SCALES, ENDS = (1.0, 3.0, 5.0), (1.0, 5.0)


def parameter_gradient(
    f: Network,
    y0: Tensor,
    target: Tensor,
    end: float,
    how: str | qj.Gradient,
    rtol: float,
    factor: float = 1.0,
    method: str = "dopri5",
) -> Tensor:
    ys = qj.odeint(f, y0, times(0.0, end), gradient=how, rtol=rtol, atol=rtol, method=method)
    return flat(torch.autograd.grad(factor * (ys[-1] - target).square().mean(), list(f.parameters())))


class Softplus:
    """A two-layer softplus network, 100 wide, on a batch of states of dimension 5, with its exact gradient."""

    def __init__(self, scale: float, end: float, seed: int, batch: int) -> None:
        self.f, self.end = Network(5, 100, scale, seed), end
        self.y0, self.target = normal(batch, 5, seed=seed + 1), normal(batch, 5, seed=seed + 2)
        self.exact = self.gradient("discrete", 1e-9)

    def gradient(self, how: str | qj.Gradient, rtol: float = 1e-3, factor: float = 1.0) -> Tensor:
        return parameter_gradient(self.f, self.y0, self.target, self.end, how, rtol, factor)

    def error(self, how: str | qj.Gradient) -> float:
        return distance(self.gradient(how), self.exact)


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@cache
def softplus(scale: float, end: float, seed: int = 4, batch: int = 50) -> Softplus:
    return Softplus(scale, end, seed, batch)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("scale", SCALES)
def test_gq_and_discrete_are_as_accurate_as_backpropagation(scale: float, end: float) -> None:
    problem = softplus(scale, end)
    direct = problem.error("direct")
    assert direct < 2e-2
    for how in ("gq", "discrete"):
        assert problem.error(how) < 1.5 * direct


@pytest.mark.parametrize(("scale", "how"), [(3.0, "adjoint"), (3.0, "seminorm"), (3.0, "gq-paper"), (5.0, "gq-paper")])
def test_solving_the_state_backwards_destroys_the_gradient(scale: float, how: str) -> None:
    assert softplus(scale, 5.0).error(how) > 2.0  # wrong by more than 200 %


def test_gq_is_ten_times_more_accurate_than_the_heuristic_number_of_nodes() -> None:
    """Geometric mean over networks."""
    gains = []
    for seed in range(3):
        problem = Softplus(3.0, 1.0, seed, 200)
        gains.append(problem.error("gq-paper") / problem.error("gq"))
    assert math.prod(gains) ** (1 / len(gains)) > 10


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_the_scale_of_the_loss_does_not_matter(factor: float) -> None:
    problem = softplus(3.0, 1.0)
    once, scaled = problem.gradient("gq"), problem.gradient("gq", factor=factor)
    assert distance(scaled / factor, once) < 1e-4


def slope(errors: list[float], sizes: list[float]) -> float:
    """Order of convergence: slope of the least-squares line through the logarithms."""
    x, y = [math.log(s) for s in sizes], [math.log(e) for e in errors]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def convergence(error: Callable[[float], float], sizes: list[float]) -> float:
    return slope([error(s) for s in sizes], sizes)


@pytest.mark.parametrize("method", ["dopri5", "tsit5", "bosh3"])
def test_the_error_of_gq_is_proportional_to_the_tolerance(method: str) -> None:
    f, y0, target = Driven(3, 16, 2.0), normal(8, 3), normal(8, 3, seed=1)
    exact = parameter_gradient(f, y0, target, 2.0, "discrete", 1e-12, method="dopri8")

    def error(tolerance: float) -> float:
        return distance(parameter_gradient(f, y0, target, 2.0, "gq", tolerance, method=method), exact)

    order = convergence(error, [1e-3, 1e-4, 1e-5, 1e-6, 1e-7])
    assert 0.75 < order < 1.35


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("midpoint", 2), ("heun3", 3), ("rk4", 4)])
def test_the_error_of_gq_falls_with_the_order_of_the_method_on_a_grid(method: str, order: int) -> None:
    f, y0, target = Driven(3, 16, 2.0), normal(8, 3), normal(8, 3, seed=1)
    exact = parameter_gradient(f, y0, target, 1.0, "discrete", 1e-12, method="dopri8")

    def error(h: float) -> float:
        ys = qj.odeint(f, y0, times(0.0, 1.0), gradient="gq", method=method, options={"step_size": h})
        found = flat(torch.autograd.grad((ys[-1] - target).square().mean(), list(f.parameters())))
        return distance(found, exact)

    measured = convergence(error, [1 / 16, 1 / 32, 1 / 64, 1 / 128])
    assert order - 0.3 < measured < order + 1.3


def test_float32_is_accurate_to_the_tolerance() -> None:
    f, y0, target = Driven(3, 16, 2.0), normal(8, 3), normal(8, 3, seed=1)
    exact = parameter_gradient(f, y0, target, 2.0, "discrete", 1e-11)
    single = Driven(3, 16, 2.0).float()
    for how in ("direct", "discrete", "gq"):
        found = parameter_gradient(single, y0.float(), target.float(), 2.0, how, 1e-4)
        assert distance(found.double(), exact) < 2e-3


@pytest.mark.parametrize("method", ["midpoint", "rk4", "explicit_adams", "implicit_adams"])
def test_stored_trajectories_do_not_depend_on_how_observations_are_interpolated(method: str) -> None:
    """All observations lie on the grid, so that only the backward pass could see the interpolant."""
    f, y0, t = Driven(3, 8, 3.0), normal(4, 3), torch.linspace(0.0, 1.0, 11, dtype=torch.float64)

    def found(interp: str) -> Tensor:
        options = {"interp": interp} if method in ("midpoint", "rk4") else {"interp": interp, "max_iters": 20}
        ys = qj.odeint(f, y0, t, method=method, options=options, gradient="gq", rtol=1e-8, atol=1e-8)
        return flat(torch.autograd.grad(ys.square().sum(), list(f.parameters())))

    assert distance(found("linear"), found("cubic")) < 1e-14


def test_a_stored_trajectory_costs_no_evaluations_that_the_next_step_would_not_make() -> None:
    counts = {}
    for interp in ("linear", "cubic"):
        sol = qj.solve(
            Driven(),
            normal(4, 3),
            torch.linspace(0.0, 1.0, 11, dtype=torch.float64),
            method="rk4",
            options={"interp": interp},
            gradient="gq",
        )
        counts[interp] = sol.stats.forward_evaluations
    assert counts["linear"] == counts["cubic"] == 41


def test_the_continuous_solution_stays_linear_beside_a_stored_trajectory() -> None:
    t = times(0.0, 0.5, 1.0)
    sol = qj.solve(Driven(), normal(4, 3), t, method="rk4", options={"interp": "linear"}, gradient="gq")
    assert torch.allclose(sol(0.25), 0.5 * (sol.ys[0] + sol.ys[1]), rtol=1e-12)
