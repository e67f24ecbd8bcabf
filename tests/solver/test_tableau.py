"""Order conditions, measured orders and agreement with torchdiffeq of the Runge-Kutta methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import factorial

import numpy as np
import pytest
import torch
import torchdiffeq
from torchdiffeq._impl import adaptive_heun, bosh3, dopri5, dopri8, fehlberg2
from torchdiffeq._impl.interp import _interp_evaluate, _interp_fit

from quadjoint.solver.methods.rooted_trees import rooted_trees
from quadjoint.solver.methods.tableau import ButcherTableau
from quadjoint.solver.methods.tableaus import TABLEAUS

Field = Callable[[float, np.ndarray], np.ndarray]
ALL = sorted(TABLEAUS)
METHODS = [name for name in ALL if TABLEAUS[name].explicit]
PAIRS = {
    "dopri5": dopri5.Dopri5Solver,
    "dopri8": dopri8.Dopri8Solver,
    "bosh3": bosh3.Bosh3Solver,
    "fehlberg2": fehlberg2.Fehlberg2,
    "adaptive_heun": adaptive_heun.AdaptiveHeunSolver,
}
NUMBERS = [
    (name, field)
    for name in ALL
    for field in ("a", "b", "b_error", "c", "c_extra", "a_extra", "dense")
    if getattr(TABLEAUS[name], field) is not None and getattr(TABLEAUS[name], field).size > 0
]
FIXED = ["euler", "midpoint", "heun2", "heun3", "rk4"]


def stages(tableau: ButcherTableau, f: Field, t0: float, y0: np.ndarray, h: float) -> np.ndarray:
    """All stages and extra stages of one step, shape (s + e, *y0.shape)."""
    s, e = tableau.stages, tableau.extra_stages
    rows = [*np.pad(tableau.a, ((0, 0), (0, e))), *tableau.a_extra]
    k = np.zeros((s + e, *y0.shape))
    for i, (c, row) in enumerate(zip([*tableau.c, *tableau.c_extra], rows, strict=True)):
        k[i] = f(t0 + c * h, y0 + h * np.tensordot(row, k, axes=1))
    return k


def scalar_field(t: float, y: np.ndarray) -> np.ndarray:
    return np.cos(t) * y


def scalar_solution(t: float) -> np.ndarray:
    return np.exp(np.sin(np.array([t])))


def nonlinear_field(t: float, y: np.ndarray) -> np.ndarray:
    return np.array([-y[0] * np.log(y[1]), y[1] * np.log(y[0])])


def nonlinear_solution(t: float) -> np.ndarray:
    return np.exp(np.array([np.cos(t), np.sin(t)]))


PROBLEMS = {"scalar": (scalar_field, scalar_solution), "nonlinear": (nonlinear_field, nonlinear_solution)}


def measured_exponent(tableau: ButcherTableau, problem: str, theta: float) -> float:
    """Slope of log |error at t0 + theta h| over log h after one step: one more than the order.

    The error is the root mean square over several t0, so that no sign change bends the line.
    """
    field, solution = PROBLEMS[problem]
    largest = 0.5 if tableau.order == 8 else 0.01 * tableau.order  # errors well above rounding
    steps = largest * 2.0 ** -np.linspace(0.0, 1.5, 6)
    weights = tableau.dense_weights([theta])[0]
    errors = np.zeros(len(steps))
    for t0 in np.linspace(0.3, 3.0, 8):
        for i, h in enumerate(steps):
            y = solution(t0) + h * np.tensordot(weights, stages(tableau, field, t0, solution(t0), h), axes=1)
            errors[i] += np.square(y - solution(t0 + theta * h)).sum()
    return float(np.polyfit(np.log(steps), np.log(errors) / 2, 1)[0])


def test_rooted_trees_are_counted_as_by_cayley() -> None:
    trees = rooted_trees(8)
    assert np.bincount(trees.vertices)[1:].tolist() == [1, 1, 2, 4, 9, 20, 48, 115]
    for order in range(1, 9):
        of_order = trees.density[trees.vertices == order]
        assert (of_order.min(), of_order.max()) == (order, factorial(order))  # the bush and the tall tree


def test_gauss_collocation_satisfies_every_condition_up_to_order_eight() -> None:
    """Four Gauss nodes give order 2 * 4, which checks trees, densities and weights independently."""
    nodes, weights = np.polynomial.legendre.leggauss(4)
    c, b = (nodes + 1) / 2, weights / 2
    powers = np.arange(1, 5)
    a = (c[:, None] ** powers / powers) @ np.linalg.inv(c[:, None] ** (powers - 1))
    trees = rooted_trees(9)
    defect = np.abs(b @ trees.elementary_weights(a) - 1 / trees.density)
    assert defect[: trees.count(8)].max() < 1e-14
    assert defect[trees.count(8) :].max() > 1e-8


def test_the_methods_are_all_there() -> None:
    assert set(METHODS) == {*PAIRS, *FIXED, "tsit5"}
    assert all(name == tableau.name for name, tableau in TABLEAUS.items())
    assert {name for name in METHODS if TABLEAUS[name].fsal} == {"bosh3", "dopri5", "dopri8", "tsit5"}
    assert all(TABLEAUS[name].dense_order >= TABLEAUS[name].order - 1 for name in METHODS)


@pytest.mark.parametrize("name", ALL)
def test_no_order_is_understated(name: str) -> None:
    """Claiming one order more, of the solution or of the embedded one, is refused."""
    tableau = TABLEAUS[name]
    with pytest.raises(ValueError, match=f"{name}: b should have order {tableau.order + 1}"):
        replace(tableau, order=tableau.order + 1)
    if tableau.error_order is not None:
        with pytest.raises(ValueError, match=f"b - b_error should have order {tableau.error_order + 1}"):
            replace(tableau, error_order=tableau.error_order + 1)
    with pytest.raises(ValueError, match="order"):
        replace(tableau, dense_order=tableau.dense_order + 1)


@pytest.mark.parametrize(("name", "field"), NUMBERS)
def test_a_mistyped_digit_is_refused(name: str, field: str) -> None:
    """A change by 1e-8 of any one entry makes the tableau refuse itself, by its name."""
    original = getattr(TABLEAUS[name], field)
    for index in np.ndindex(original.shape):
        changed = original.copy()
        changed[index] += 1e-8
        with pytest.raises(ValueError, match=f"^{name}: "):
            replace(TABLEAUS[name], **{field: changed})


def test_refusals_say_what_is_wrong() -> None:
    heun = TABLEAUS["adaptive_heun"]
    with pytest.raises(ValueError, match=r"b_error must have shape \(2,\), got \(3,\)"):
        replace(heun, b_error=np.zeros(3))
    with pytest.raises(ValueError, match=r"dense must have 3 rows, got shape \(2, 3\)"):
        replace(heun, dense=np.zeros((2, 3)))
    with pytest.raises(ValueError, match="a_extra must be strictly lower triangular"):
        replace(heun, a_extra=np.array([[0.5, 0.0, 0.5]]))
    with pytest.raises(ValueError, match="stages 0 to 1 depend on each other by a matrix without inverse"):
        replace(heun, a=np.array([[1.0, -1.0], [0.5, -0.5]]), c=np.zeros(2))
    with pytest.raises(ValueError, match=r"row 1 of a sums to c\[1\] only up to 1\.0e-01"):
        replace(heun, c=np.array([0.0, 0.9]))
    with pytest.raises(ValueError, match="given together"):
        replace(heun, error_order=None)
    with pytest.raises(ValueError, match="orders start at 1"):
        replace(heun, order=0)
    with pytest.raises(ValueError, match=r"a tree with 2 vertices by 5\.0e-01"):
        replace(heun, b=np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="degree 3 cannot have order 4"):
        replace(heun, dense_order=4)
    with pytest.raises(ValueError, match=r"misses y1 at theta = 1 by 1\.0e-03"):
        bump = np.zeros((3, 4))
        bump[0, 3], bump[1, 3] = 1e-3, -1e-3
        replace(heun, dense=np.pad(heun.dense, ((0, 0), (0, 1))) + bump, dense_order=1)
    with pytest.raises(ValueError, match="order condition"):
        replace(heun, b=np.array([np.nan, 0.5]))


def test_the_numbers_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        TABLEAUS["dopri5"].b[0] = 1.0


@pytest.mark.parametrize("name", METHODS)
def test_the_extension_joins_steps_with_a_continuous_slope(name: str) -> None:
    """y(theta) starts in y0 and ends in y1; but for Euler its slopes there are f(t0, y0) and f(t1, y1)."""
    tableau = TABLEAUS[name]
    s, e = tableau.stages, tableau.extra_stages
    assert tableau.dense_weights([0.0, 1.0]).shape == (2, s + e)
    at_start, at_end = tableau.dense_weights(np.array([0.0, 1.0]))
    assert np.array_equal(at_start, np.zeros(s + e))
    assert np.allclose(at_end, np.append(tableau.b, np.zeros(e)), rtol=0, atol=1e-12)
    if name == "euler":
        return
    assert tableau.fsal != tableau.first_extra_is_next
    slope_at_end = tableau.dense @ np.arange(1, tableau.dense.shape[1] + 1)
    assert np.allclose(tableau.dense[:, 0], np.eye(s + e)[0], rtol=0, atol=1e-14)
    assert np.allclose(slope_at_end, np.eye(s + e)[s - 1 if tableau.fsal else s], rtol=0, atol=5e-12)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_measured_order_of_the_extension(name: str, problem: str) -> None:
    tableau = TABLEAUS[name]
    exponent = measured_exponent(tableau, problem, theta=0.37)
    assert abs(exponent - (tableau.dense_order + 1)) < 0.25


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_measured_order_of_the_step(name: str, problem: str) -> None:
    tableau = TABLEAUS[name]
    exponent = measured_exponent(tableau, problem, theta=1.0)
    assert exponent > tableau.order + 1 - 0.25
    if problem == "nonlinear":
        assert exponent < tableau.order + 1 + 0.5


@pytest.mark.parametrize("name", METHODS)
def test_the_weights_inside_a_step_stay_small(name: str) -> None:
    """Large weights would amplify rounding in the stages."""
    weights = TABLEAUS[name].dense_weights(np.linspace(0.0, 1.0, 101))
    at_end = np.abs(TABLEAUS[name].b).sum()
    assert np.abs(weights).sum(axis=1).max() < 1.25 * at_end


@pytest.mark.parametrize("name", METHODS)
def test_linear_interpolation(name: str) -> None:
    tableau = TABLEAUS[name]
    line = tableau.linear()
    theta = np.array([0.0, 0.25, 1.0])
    assert np.array_equal(line.dense_weights(theta), np.outer(theta, tableau.b))
    assert (line.extra_stages, line.dense_order, line.first_extra_is_next) == (0, 1, False)
    assert (line.name, line.order, line.fsal) == (name, tableau.order, tableau.fsal)


def test_theta_must_be_a_list_of_points() -> None:
    with pytest.raises(ValueError, match="one dimension"):
        TABLEAUS["rk4"].dense_weights(np.zeros((2, 2)))


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_those_of_torchdiffeq(name: str) -> None:
    """Equal coefficients, hence equal error estimates, sign included."""
    ours, theirs = TABLEAUS[name], PAIRS[name]
    assert ours.order == theirs.order
    assert ours.b_error is not None
    s = ours.stages
    rows = [np.pad(row.numpy(), (0, s - len(row))) for row in theirs.tableau.beta]
    for mine, other in [
        (ours.c, np.append(0.0, theirs.tableau.alpha.numpy())),
        (ours.a, np.stack([np.zeros(s), *rows])),
        (ours.b, theirs.tableau.c_sol.numpy()),
        (ours.b_error, theirs.tableau.c_error.numpy()),
    ]:
        assert np.allclose(mine, other, rtol=0, atol=1e-15)


def test_tsit5_embedded_solution_is_unique_up_to_scale() -> None:
    """The conditions of order 4 leave b_error one direction; its last entry, -1/66, fixes the length."""
    tableau = TABLEAUS["tsit5"]
    assert tableau.b_error is not None
    phi = rooted_trees(4).elementary_weights(tableau.a)
    _, singular, directions = np.linalg.svd(phi.T)
    assert (singular < 1e-12).sum() == 1
    direction = directions[-1]
    assert np.allclose(tableau.b_error, direction / direction[-1] * (-1 / 66), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", FIXED)
def test_fixed_steps_are_those_of_torchdiffeq(name: str) -> None:
    tableau, h = TABLEAUS[name], 0.5
    y0 = nonlinear_solution(0.3)

    def field(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack([-y[0] * torch.log(y[1]), y[1] * torch.log(y[0])])

    t = torch.tensor([0.3, 0.3 + h], dtype=torch.float64)
    theirs = torchdiffeq.odeint(field, torch.tensor(y0), t, method=name)[-1].numpy()
    k = stages(tableau, nonlinear_field, 0.3, y0, h)
    assert np.allclose(y0 + h * tableau.b @ k[: tableau.stages], theirs, rtol=1e-14, atol=0)


def test_dopri5_extension_is_that_of_torchdiffeq() -> None:
    tableau, h, theta = TABLEAUS["dopri5"], 0.5, np.array([0.1, 0.37, 0.8])
    y0 = nonlinear_solution(0.3)
    k = stages(tableau, nonlinear_field, 0.3, y0, h)
    y1, middle = y0 + h * tableau.b @ k, y0 + h * dopri5.DPS_C_MID.numpy() @ k
    tensors = [torch.tensor(value) for value in (y0, y1, middle, k[0], k[-1])]
    fit = _interp_fit(*tensors, torch.tensor(h, dtype=torch.float64))
    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    theirs = np.stack([_interp_evaluate(fit, zero, one, torch.tensor(x)).numpy() for x in theta])
    assert np.allclose(y0 + h * tableau.dense_weights(theta) @ k, theirs, rtol=1e-14, atol=0)
