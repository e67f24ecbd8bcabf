"""Forward solves: closed forms, orders of convergence, dense output."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import problems
import quadjoint as qj
from quadjoint.solver.dynamics import Dynamics
from quadjoint.solver.methods.adams import Adams, adams_weights
from quadjoint.solver.methods.catalogue import RUNGE_KUTTA
from quadjoint.solver.methods.leapfrog import AsynchronousLeapfrog

# The forward solve is the subject here; no gradient method has to be chosen.
odeint, solve = partial(qj.odeint, gradient="direct"), partial(qj.solve, gradient="direct")

ADAPTIVE = [name for name, method in RUNGE_KUTTA.items() if method.adaptive]
FIXED = [name for name, method in RUNGE_KUTTA.items() if not method.adaptive]
SCIPY = ["RK45", "RK23", "DOP853", "Radau", "BDF", "LSODA"]
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]


def forwards(k: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.linspace(0.2, 1.7, k, dtype=dtype) ** 1.3


def solver_settings(method: str) -> dict[str, Any]:
    """Settings with which a method reaches ``accuracy`` on the problems here in a short time."""
    if method == "scipy_solver":
        return {"options": {"solver": "RK45"}, "rtol": 1e-7, "atol": 1e-7}
    if method in ADAPTIVE:
        tol = {"bosh3": 1e-7, "fehlberg2": 1e-7, "adaptive_heun": 1e-5}.get(method, 1e-8)
        return {"rtol": tol, "atol": tol}
    steps = {"euler": 5e-3, "midpoint": 0.01, "heun2": 0.01, "heun3": 0.01, "alf": 0.01}
    steps |= {"implicit_euler": 5e-3, "implicit_midpoint": 0.01, "trapezoid": 0.01, "sdirk2": 0.01}
    options: dict[str, Any] = {"step_size": steps.get(method, 0.02)}
    if "adams" in method:
        options["max_order"] = 5
    if method == "implicit_adams":
        options["max_iters"] = 20
    return {"options": options, "rtol": 1e-9, "atol": 1e-9}


def accuracy(method: str) -> float:
    coarse = {"euler": 4e-2, "midpoint": 3e-4, "heun2": 3e-4, "alf": 3e-4, "fehlberg2": 2e-4, "adaptive_heun": 1e-4}
    coarse |= {"implicit_euler": 4e-2, "implicit_midpoint": 3e-4, "trapezoid": 3e-4, "sdirk2": 3e-4, "trbdf2": 5e-5}
    return coarse.get(method, 4e-6)


METHODS = [m for m in qj.METHODS if m not in ("scipy_solver", "fixed_adams") and not m.startswith("my_")]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", problems.PROBLEMS)
@pytest.mark.parametrize("method", METHODS)
def test_closed_forms(method: str, name: str, backwards: bool) -> None:
    problem = problems.PROBLEMS[name]()
    t = forwards().flip(0) if backwards else forwards()
    with torch.no_grad():
        ys = odeint(problem, problem.y0, t, method=method, **solver_settings(method))
        assert problems.error(ys, problem.exact(problem.y0, t)) < accuracy(method)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("solver", SCIPY)
def test_closed_form_by_scipy(solver: str, backwards: bool) -> None:
    problem = problems.Logistic()
    t = forwards().flip(0) if backwards else forwards()
    with torch.no_grad():
        ys = odeint(problem, problem.y0, t, method="scipy_solver", options={"solver": solver}, rtol=1e-7, atol=1e-7)
    assert problems.error(ys, problem.exact(problem.y0, t)) < 2e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ["dopri5", "dopri8", "rk4", "implicit_adams", "scipy_solver"])
@torch.no_grad()
def test_states_keep_their_dtype(method: str, dtype: torch.dtype) -> None:
    problem = problems.Spiral(dtype) if dtype.is_complex else problems.Linear(dtype)
    t = torch.linspace(0, 1, 4, dtype=torch.float64)
    settings = solver_settings(method)
    if dtype in (torch.float32, torch.complex64):
        settings |= {"rtol": 1e-5, "atol": 1e-5}
    ys = odeint(problem, problem.y0, t, method=method, **settings)
    assert ys.dtype == dtype
    assert problems.error(ys, problem.exact(problem.y0, t.to(dtype.to_real()))) < 3e-4


@pytest.mark.parametrize("method", [*METHODS, "scipy_solver"])
@torch.no_grad()
def test_a_state_without_dimensions(method: str) -> None:
    problem = problems.Growth()
    y0, t = torch.tensor(1.2, dtype=torch.float64), torch.linspace(0, 1, 3, dtype=torch.float64)
    sol = solve(problem, y0, t, method=method, **solver_settings(method))
    assert sol.ys.shape == (3,) and sol(0.5).shape == ()
    assert problems.error(sol.ys, problem.exact(y0, t)) < accuracy(method)


@pytest.mark.parametrize("method", [*METHODS, "scipy_solver"])
@torch.no_grad()
def test_a_single_time_returns_the_initial_state(method: str) -> None:
    problem = problems.Oscillator()
    x, v = odeint(problem, problem.y0, torch.tensor([0.3]), method=method)
    assert torch.equal(x[0], problem.y0[0]) and torch.equal(v[0], problem.y0[1])
    assert x.shape == (1, 2) and v.shape == (1, 2, 1)


def slope(sizes: list[float], errors: list[float]) -> float:
    """Order of convergence: the slope of log error over log step size by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


def march(stepper: Any, problem: Any, n: int, span: tuple[float, float]) -> tuple[float, float]:
    """Errors of n steps on a grid that is not uniform: at the end, and of the dense output anywhere."""
    y = problem.y0.double()
    f = Dynamics(problem, y)
    uniform = np.linspace(0, 1, n + 1)
    grid = span[0] + (span[1] - span[0]) * (uniform + 0.1 * np.sin(2 * np.pi * uniform) / 2)
    carry, between = None, 0.0

    def exact(t: list[float]) -> Tensor:
        return problem.exact(problem.y0, torch.tensor([span[0], *t], dtype=torch.float64))[1:]

    for t0, t1 in itertools.pairwise(grid.tolist()):
        step = stepper.step(f, t0, t1, y, carry=carry)
        times = [t0 + theta * (t1 - t0) for theta in (0.2, 0.5, 0.9)]
        between = max(between, problems.error(step.evaluate(times), exact(times)))
        y, carry = step.y1, step.carry
    return problems.error(y, exact([grid[-1]])[0]), between


def orders() -> list[Any]:
    """(stepper, its order, order of its dense output in the large, coarsest number of steps)."""
    cases = []
    for name, method in RUNGE_KUTTA.items():
        coarse = {1: 80, 2: 40, 3: 30, 4: 20, 5: 14}.get(method.order, 6)
        dense = min(method.order, method.tableau.dense_order + 1)
        cases.append(pytest.param(method, method.order, dense, coarse, id=name))
    rk4 = RUNGE_KUTTA["rk4"]
    for order in (2, 3, 4, 5):
        explicit = Adams(rk4, implicit=False, max_order=order)
        implicit = Adams(rk4, implicit=True, max_order=order, max_iters=40, rtol=1e-13, atol=1e-13)
        cases.append(pytest.param(explicit, order - 1, min(order - 1, 4), 60, id=f"explicit_adams({order})"))
        cases.append(pytest.param(implicit, order, min(order, 4), 40, id=f"implicit_adams({order})"))
    cases.append(pytest.param(AsynchronousLeapfrog(), 2, 2, 60, id="alf"))
    return cases


@pytest.mark.parametrize(("stepper", "order", "dense_order", "coarse"), orders())
def test_order_of_convergence(stepper: Any, order: int, dense_order: int, coarse: int) -> None:
    problem = problems.Logistic()
    with torch.no_grad():
        counts = [round(coarse * 2 ** (i / 2)) for i in range(5)]
        span = (0.2, 1.9) if order < 8 else (0.2, 5.0)  # long enough that rounding errors stay out of sight
        found = [march(stepper, problem, n, span) for n in counts]
    sizes = [1.0 / n for n in counts]
    assert slope(sizes, [end for end, _ in found]) > order - 0.25
    assert slope(sizes, [between for _, between in found]) > dense_order - 0.25


def test_adams_weights_are_the_classical_ones() -> None:
    assert adams_weights((0.0, -1.0, -2.0)) == pytest.approx([23 / 12, -16 / 12, 5 / 12])
    assert adams_weights((1.0, 0.0, -1.0, -2.0)) == pytest.approx([9 / 24, 19 / 24, -5 / 24, 1 / 24])


@pytest.mark.parametrize("max_order", [4, 8, 12])
def test_adams_bashforth_is_stable_exactly_in_its_interval(max_order: int) -> None:
    """On y' = -y the root -1 is reached at h = 2 / sum |b_j|, which is 0.0034 for order eleven."""
    limit = 2 / sum(abs(b) for b in adams_weights(tuple(float(-j) for j in range(max_order - 1))))
    y0 = torch.ones(1, dtype=torch.float64)
    for h, decays in ((0.9 * limit, True), (1.5 * limit, False)):
        t = torch.tensor([0.0, 900 * h], dtype=torch.float64)
        options = {"step_size": h, "max_order": max_order}
        end = odeint(lambda t, y: -y, y0, t, method="explicit_adams", options=options)[-1]
        assert (problems.error(end, torch.exp(-t[1:])) < 1e-3) == decays


@pytest.mark.parametrize("method", ADAPTIVE)
def test_error_follows_the_tolerance(method: str) -> None:
    problem, t = problems.Linear(), torch.tensor([0.0, 3.0], dtype=torch.float64)
    tolerances = [1e-4, 1e-6, 1e-8] if RUNGE_KUTTA[method].order > 2 else [1e-4, 1e-5]
    # The error estimate of fehlberg2 has weights 1/512. An error estimate of order 3, as that of trbdf2, keeps the
    # global error of a method of order 2 to the power 2/3 of the tolerance.
    factor = {"fehlberg2": 1000, "trbdf2": 100}.get(method, 30)
    exact = problem.exact(problem.y0, t)
    for tol in tolerances:
        ys = odeint(problem, problem.y0, t, method=method, rtol=tol, atol=tol)
        assert problems.error(ys, exact) < factor * tol


@pytest.mark.parametrize("method", [*METHODS, "scipy_solver"])
@torch.no_grad()
def test_dense_output_anywhere(method: str) -> None:
    problem = problems.Oscillator()
    for t in (forwards(2), forwards(2).flip(0)):
        sol = solve(problem, problem.y0, t, method=method, **solver_settings(method))
        ask = torch.cat([t[:1], torch.tensor([[0.9], [0.4]], dtype=torch.float64).flatten()])
        x, v = sol(ask)
        assert problems.error((x, v), problem.exact(problem.y0, ask)) < 10 * accuracy(method)
        assert sol(ask.reshape(3, 1))[1].shape == (3, 1, 2, 1)
        with pytest.raises(ValueError, match="outside the solved interval"):
            sol(2.5)


def test_dense_output_is_differentiable_in_time_and_initial_state() -> None:
    problem = problems.Growth()
    y0 = problem.y0.clone().requires_grad_()
    sol = solve(problem, y0, forwards(2), rtol=1e-10, atol=1e-10)
    ask = torch.tensor([0.5, 1.1], dtype=torch.float64, requires_grad=True)
    found = torch.autograd.grad(problems.loss(sol(ask)), (y0, ask))
    exact = problem.exact(y0, torch.cat([forwards(2)[:1], ask]))[1:]
    assert problems.agree(list(found), list(torch.autograd.grad(problems.loss(exact), (y0, ask))), 1e-6)


@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4", "alf"])
@pytest.mark.parametrize("step", [0.1, 0.15])
def test_a_state_of_one_float32_number_keeps_its_precision(method: str, step: float) -> None:
    """Also with times in float64 that a gradient is wanted in, at the ends of steps and inside of them."""
    t = torch.linspace(0.0, 1.0, 11, dtype=torch.float64, requires_grad=True)
    seen = set()

    def f(t: Tensor, y: Tensor) -> Tensor:
        seen.add(y.dtype)
        return -y

    y = qj.odeint(f, torch.tensor(1.0), t, method=method, options={"step_size": step}, gradient="direct")
    assert {y.dtype, *seen} == {torch.float32}
    (slopes,) = torch.autograd.grad(y.sum(), t)
    rough = 0.05 if method == "euler" else 0.005
    assert torch.allclose(y.double(), torch.exp(-t), atol=rough)
    assert torch.allclose(slopes[1:], -torch.exp(-t[1:]), atol=4 * rough)
