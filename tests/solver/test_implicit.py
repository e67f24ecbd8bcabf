"""Implicit Runge-Kutta methods: orders, stability, stiff problems, and what else solves can be asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import quadjoint as qj
from quadjoint.solver.dynamics import Dynamics
from stiff_problems import PROBLEMS, robertson

IMPLICIT = {name: tableau for name, tableau in qj.TABLEAUS.items() if not tableau.explicit}
ADAPTIVE = [name for name, tableau in IMPLICIT.items() if tableau.b_error is not None]
FIXED = sorted(set(IMPLICIT) - set(ADAPTIVE))
L_STABLE = {"implicit_euler", "sdirk2", "trbdf2", "radauIIA3", "kvaerno3", "radauIIA5", "kvaerno5"}


def exact(t: Tensor) -> Tensor:
    """The solution of ``field``, shape (..., 3)."""
    return torch.stack([torch.exp(torch.cos(t)), torch.exp(torch.sin(t)), 1.0 / (2.0 + torch.cos(t))], dim=-1)


def field(t: Tensor, y: Tensor) -> Tensor:
    """Nonlinear; its last component depends on the time."""
    a, b, c = y.unbind(-1)
    return torch.stack([-a * torch.log(b), b * torch.log(a), torch.sin(t) * c * c], dim=-1)


def test_which_methods_there_are_and_which_of_them_are_adaptive() -> None:
    assert set(ADAPTIVE) == {"trbdf2", "kvaerno3", "kvaerno5", "radauIIA5"}
    theirs = {"implicit_euler", "implicit_midpoint", "trapezoid", "radauIIA3", "gl4", "gl6", "sdirk2"}
    assert set(FIXED) == theirs
    assert {"trbdf2", "radauIIA5"} <= set(qj.METHODS) and set(IMPLICIT) <= set(qj.METHODS)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", IMPLICIT)
def test_order_of_convergence(name: str, backwards: bool) -> None:
    """At the end of steps and between them, forwards and backwards in time."""
    tableau = IMPLICIT[name]
    times = torch.tensor([0.3, 0.3 + 1.2 * 0.7, 1.5], dtype=torch.float64)
    if backwards:
        times = torch.tensor([1.5, 1.5 - 1.2 * 0.7, 0.3], dtype=torch.float64)
    counts = {1: (40, 80), 6: (5, 10)}.get(tableau.order, (10, 20))
    errors = []
    for n in counts:
        with torch.no_grad():
            ys = qj.odeint(field, exact(times[0])[None], times, method=name, options={"step_size": 1.2 / n})
        errors.append((ys[1:, 0] - exact(times[1:])).norm(dim=-1))
    order = torch.log2(errors[0] / errors[1])
    assert order[1] > tableau.order - 0.35
    # 0.7 of the interval lies at a grid point of both grids but for order six, which is as good as it claims inside.
    assert order[0] > min(tableau.order, tableau.dense_order + 1) - 0.35


@pytest.mark.parametrize("name", IMPLICIT)
def test_the_extension_inside_of_steps_has_the_order_it_claims(name: str) -> None:
    tableau = IMPLICIT[name]
    errors = []
    for h in (0.1, 0.05):
        times = torch.tensor([0.3, 0.3 + 0.37 * h, 0.3 + h], dtype=torch.float64)
        with torch.no_grad():
            ys = qj.odeint(field, exact(times[0])[None], times, method=name, options={"step_size": h})
        errors.append(float((ys[1, 0] - exact(times[1])).norm()))
    assert np.log2(errors[0] / errors[1]) > tableau.dense_order + 1 - 0.35


@pytest.mark.parametrize("name", IMPLICIT)
def test_stability(name: str) -> None:
    """All are A-stable: bounded on the imaginary axis, without a pole to the left of it. L-stable ones damp all."""
    tableau = IMPLICIT[name]
    for y in np.concatenate([np.linspace(0.0, 20.0, 81), np.geomspace(20.0, 1e6, 20)]):
        assert abs(tableau.stability(1j * y)) <= 1.0 + 1e-9
    poles = 1.0 / np.linalg.eigvals(tableau.a)[np.abs(np.linalg.eigvals(tableau.a)) > 1e-12]
    assert (poles.real > 0.0).all()
    assert (abs(tableau.stability(-1e8)) < 1e-5) == (name in L_STABLE)
    for step in (1e-3, 1.0):
        with torch.no_grad():
            y = qj.odeint(
                lambda t, y: -1e6 * y,
                torch.ones(1, dtype=torch.float64),
                torch.tensor([0.0, step], dtype=torch.float64),
                method=name,
                options={"step_size": step},
            )[-1]
        # An explicit first stage is 1e6 times as large as y, and so is its rounding.
        rounding = 4.0 * 1e6 * step * torch.finfo(torch.float64).eps
        assert float(y) == pytest.approx(tableau.stability(-1e6 * step).real, rel=1e-6, abs=max(1e-12, rounding))


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("rate", [1e2, 1e6])
def test_prothero_and_robinson(name: str, rate: float) -> None:
    """y' = rate (cos t - y) - sin t with the solution cos t: the steps are those of cos t, however stiff it is."""
    t = torch.tensor([0.0, 1.3, 4.0], dtype=torch.float64)
    with torch.no_grad():
        sol = qj.solve(
            lambda t, y: rate * (torch.cos(t) - y) - torch.sin(t),
            torch.ones(2, 1, dtype=torch.float64),
            t,
            method=name,
            rtol=1e-6,
            atol=1e-6,
        )
    assert float((sol.ys[:, 0, 0] - torch.cos(t)).abs().max()) < 1e-5
    assert sol.stats.accepted_steps < 500
    assert sol.stats.rejected_steps < 10


STIFF = [
    ("kvaerno5", "robertson", 1e-4),
    ("kvaerno5", "robertson", 1e-8),
    ("radauIIA5", "robertson", 1e-4),
    ("radauIIA5", "robertson", 1e-6),
    ("kvaerno3", "robertson", 1e-4),
    ("trbdf2", "robertson", 1e-4),
    ("kvaerno5", "van_der_pol", 1e-4),
    ("radauIIA5", "van_der_pol", 1e-4),
    ("kvaerno5", "hires", 1e-6),
    ("radauIIA5", "hires", 1e-6),
    ("kvaerno5", "orego", 1e-4),
    ("radauIIA5", "orego", 1e-4),
]
LONGER = [
    (name, problem, rtol)
    for name in ("kvaerno5", "radauIIA5")
    for problem in PROBLEMS
    for rtol in (1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
    if (name, problem, rtol) not in STIFF
]


@pytest.mark.parametrize(
    ("name", "problem", "rtol"), [*STIFF, *(pytest.param(*case, marks=pytest.mark.slow) for case in LONGER)]
)
def test_stiff_problems_are_solved_to_about_the_tolerance(name: str, problem: str, rtol: float) -> None:
    """Global errors of order five methods stay within a few times the local tolerance; OREGO's grow by its dynamics."""
    p = PROBLEMS[problem]
    t = torch.tensor([0.0, p.end], dtype=torch.float64)
    with torch.no_grad():
        y = qj.odeint(p.f, torch.tensor([p.y0], dtype=torch.float64), t, method=name, rtol=rtol, atol=rtol * p.atol)[
            -1, 0
        ]
    reference = torch.tensor(p.reference, dtype=torch.float64)
    error = (y - reference).abs() / (rtol * (reference.abs() + p.atol))
    assert float(error.max()) < {"orego": 40.0, "van_der_pol": 15.0}.get(problem, 15.0)


def test_many_steps_of_robertson_in_one_batch_are_those_of_each_sample() -> None:
    """Rates of their own, one batch; each solution agrees with that of the sample alone."""
    k = torch.tensor([[0.04, 3e7, 1e4], [0.02, 1e7, 3e4]], dtype=torch.float64)

    def f(t: Tensor, y: Tensor, k: Tensor) -> Tensor:
        a, b, c = y.unbind(-1)
        first, second, third = k[:, 0] * a, k[:, 1] * b * b, k[:, 2] * b * c
        return torch.stack([third - first, first - second - third, second], dim=-1)

    y0 = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    t = torch.tensor([0.0, 40.0], dtype=torch.float64)
    solve: dict[str, Any] = {"method": "kvaerno5", "rtol": 1e-7, "atol": 1e-11}
    with torch.no_grad():
        both = qj.odeint(lambda t, y: f(t, y, k), y0.repeat(2, 1), t, **solve)[-1]
        alone = [qj.odeint(lambda t, y, i=i: f(t, y, k[i : i + 1]), y0, t, **solve)[-1, 0] for i in (0, 1)]
    assert torch.allclose(both, torch.stack(alone), rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("name", ["kvaerno5", "radauIIA5", "gl4"])
def test_float32_and_complex_and_tuples(name: str) -> None:
    grid = {} if name in ADAPTIVE else {"options": {"step_size": 0.1}}
    t = torch.tensor([0.0, 0.7, 2.0])
    with torch.no_grad():
        low = qj.odeint(lambda t, y: -y * y, torch.ones(2, 3), t, method=name, rtol=1e-4, atol=1e-5, **grid)
        spiral = qj.odeint(
            lambda t, y: (-0.2 + 1.7j) * y + 0.1 * y.conj(),
            torch.ones(2, dtype=torch.complex128),
            t.double(),
            method=name,
            rtol=1e-7,
            **grid,
        )
        x, v = qj.odeint(lambda t, y: (y[1], -4.0 * y[0]), (torch.ones(2), torch.zeros(2)), t, method=name, **grid)
    assert torch.allclose(low, (1.0 / (1.0 + t)).reshape(-1, 1, 1).expand(3, 2, 3), atol=1e-3)
    # y = a + ib: a' = -0.1 a - 1.7 b, b' = 1.7 a - 0.3 b
    flow = torch.linalg.matrix_exp(torch.tensor([[-0.1, -1.7], [1.7, -0.3]]).double() * t.double().reshape(-1, 1, 1))
    assert torch.allclose(torch.view_as_real(spiral)[:, 0], flow[:, :, 0], atol=1e-4)
    assert torch.allclose(x[:, 0], torch.cos(2 * t), atol=5e-3) and torch.allclose(
        v[:, 0], -2 * torch.sin(2 * t), atol=1e-2
    )


@pytest.mark.parametrize("name", ["kvaerno5", "radauIIA5", "kvaerno3", "trbdf2"])
def test_times_of_each_sample_events_and_jumps(name: str) -> None:
    settings: dict[str, Any] = {"method": name, "rtol": 1e-7, "atol": 1e-9}
    own = torch.tensor([[0.0, 0.5, 1.0], [0.0, 1.0, 3.0]], dtype=torch.float64)
    ones = torch.ones(2, 1, dtype=torch.float64)
    with torch.no_grad():
        ys = qj.odeint(lambda t, y: -y * torch.cos(t), ones, own, **settings)
        time, _ = qj.odeint(
            lambda t, y: -y, ones, torch.tensor([0.0, 1.0]).double(), event_fn=lambda t, y: y[0, 0] - 0.3, **settings
        )
        options = {"jump_t": [0.3]}
        jump = qj.odeint(
            lambda t, y: torch.where(t > 0.3, -y, y),
            ones,
            torch.tensor([0.0, 1.0]).double(),
            options=options,
            **settings,
        )
    # Each of the hundred steps of trbdf2 adds nearly its tolerance of 1e-7 to the error; those of the others far less.
    most = 1e-5 if name == "trbdf2" else 1e-6
    assert torch.allclose(ys[..., 0], torch.exp(-torch.sin(own.T)), rtol=0.0, atol=most)
    assert float(time) == pytest.approx(-np.log(0.3), abs=most)
    assert float(jump[-1, 0, 0]) == pytest.approx(np.exp(0.3 - 0.7), abs=most)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", [name for name, tableau in IMPLICIT.items() if tableau.c.max() <= 1.0])
def test_steps_of_a_grid_end_at_discontinuities(name: str, backwards: bool) -> None:
    """y' = y up to t = 0.3, and -y from there on: every step multiplies y by the stability function of its own piece.

    kvaerno5 has a stage past the end of its steps, and sees what comes after a discontinuity.
    """
    t = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    lengths = {1: [0.25, 0.05], -1: [0.2, 0.25, 0.25]}
    if backwards:
        t, lengths = t.flip(0), {1: [-0.05, -0.25], -1: [-0.25, -0.25, -0.2]}
    with torch.no_grad():
        found = qj.odeint(
            lambda t, y: torch.where(t > 0.3, -y, y),
            torch.ones(2, 1, dtype=torch.float64),
            t,
            method=name,
            options={"step_size": 0.25, "jump_t": [0.3]},
        )[-1]
    exact = np.prod([IMPLICIT[name].stability(sign * h).real for sign, steps in lengths.items() for h in steps])
    torch.testing.assert_close(found, torch.full_like(found, float(exact)), rtol=1e-13, atol=0.0)


def test_a_method_with_an_estimate_takes_given_steps_if_asked_to() -> None:
    t = torch.tensor([0.0, 1.0], dtype=torch.float64)
    taken = []
    for options in ({}, {"step_size": 0.25}, {"grid_constructor": lambda f, y, t: torch.linspace(0.0, 1.0, 8)}):
        with torch.no_grad():
            sol = qj.solve(lambda t, y: -y, torch.ones(1).double(), t, method="radauIIA5", options=options)
        taken.append(sol.stats.accepted_steps)
    assert taken[1:] == [4, 7] and taken[0] not in taken[1:]


@pytest.mark.parametrize("name", ADAPTIVE)
def test_errors_of_a_stiff_component_are_damped_and_not_multiplied_by_its_rate(name: str) -> None:
    """Of a component that decays at once, the estimate is about the component, and not h lambda times it.

    That holds from the second step on. In the first, f(t0, y0) = lambda y0 is exact, and the state inside of a step
    that is much too long is as wrong as that; the estimate must say so.
    """
    stepper = qj.solver.methods.catalogue.runge_kutta_of(name)  # type: ignore[attr-defined]

    y = torch.full((1, 1), 1e-3, dtype=torch.float64)
    decay = Dynamics(lambda t, y: -1e8 * y, y)
    with torch.no_grad():
        first = stepper.step(decay, 0.0, 1.0, y)
        second = stepper.step(decay, 1.0, 2.0, first.y1 + 1e-3, carry=first.carry)
        assert float(first.error.abs()) > 0.25 * float(first.evaluate([0.4]).abs())
        assert float(second.error.abs()) < 2e-3


@pytest.mark.parametrize("name", ["trbdf2", "kvaerno3", "kvaerno5"])
def test_the_extension_does_not_feel_errors_of_the_slope_handed_on(name: str) -> None:
    """In the stiff limit, where states are fixed, a perturbation of the first stage leaves states inside alone."""
    tableau = IMPLICIT[name]
    reaction = np.append(1.0, -np.linalg.solve(tableau.a[1:, 1:], tableau.a[1:, 0]))
    assert np.abs(tableau.dense.T @ reaction).max() < 1e-12
    assert np.abs(tableau.dense @ np.arange(1, tableau.dense.shape[1] + 1) - np.eye(tableau.stages)[-1]).max() < 1e-12


def test_robertson_for_a_long_time() -> None:
    """To t = 1e11, where y1 is 2e-8: the sum of the concentrations stays one, and few steps are taken.

    SciPy's Radau takes 527 steps at the same tolerances, and radauIIA5 478.
    """
    with torch.no_grad():
        sol = qj.solve(
            robertson,
            torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64),
            torch.tensor([0.0, 1e11], dtype=torch.float64),
            method="kvaerno5",
            rtol=1e-6,
            atol=1e-14,
        )
    assert float(sol.ys[-1].sum()) == pytest.approx(1.0, abs=1e-10)
    assert sol.ys[-1, 0].tolist() == pytest.approx([2.0833e-08, 8.3333e-14, 1.0], rel=1e-3)
    assert sol.stats.accepted_steps < 260


@pytest.mark.parametrize("name", IMPLICIT)
def test_a_state_of_one_float32_number_keeps_its_precision(name: str) -> None:
    """Also with times in float64 that a gradient is wanted in, on whose grid the steps lie."""
    t = torch.linspace(0.0, 1.0, 11, dtype=torch.float64, requires_grad=True)
    y = qj.odeint(lambda t, y: -y, torch.tensor(1.0), t, method=name, options={"grid_constructor": lambda f, y, t: t})
    assert y.dtype == torch.float32
    assert y[-1].item() == pytest.approx(np.exp(-1.0), abs=0.03 if name == "implicit_euler" else 1e-3)
    y[-1].backward()
    assert t.grad is not None and t.grad[-1].item() == pytest.approx(-np.exp(-1.0), abs=0.05)


@pytest.mark.parametrize("independent", [False, True])
def test_an_explicit_first_stage_is_the_slope_at_the_start_of_every_step(independent: bool) -> None:
    """The method of Hammer and Hollingsworth has order three; its last stage lies inside of the step."""
    hammer = qj.ButcherTableau(
        name="hammer_hollingsworth",
        order=3,
        c=np.array([0.0, 2 / 3]),
        a=np.array([[0.0, 0.0], [1 / 3, 1 / 3]]),
        b=np.array([1 / 4, 3 / 4]),
        b_error=np.array([-3 / 4, 3 / 4]),
        error_order=1,
    )
    t, y0 = torch.tensor([0.0, 1.0], dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64)
    errors = []
    for h in (0.1, 0.05):
        # Every step is good enough; the iteration for the stages of a linear problem is exact all the same.
        options = {"first_step": h, "max_step": h} if independent else {"step_size": h}
        with torch.no_grad():
            found = qj.odeint(lambda t, y: -y, y0, t, method=hammer, rtol=1e2, options=options, independent=independent)
        errors.append(float((found[-1] - np.exp(-1.0)).norm()))
    assert np.log2(errors[0] / errors[1]) > 3 - 0.35
