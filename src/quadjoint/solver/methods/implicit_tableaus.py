"""Implicit Runge-Kutta methods: collocation on Gauss and Radau nodes, and diagonally implicit methods.

Where a method is defined by its nodes or by equations in one number, the coefficients are computed from these; the only
decimals are those of Kvaerno's method of order five. Every tableau is checked by the rooted trees when it is built.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from quadjoint.solver.methods.rooted_trees import rooted_trees
from quadjoint.solver.methods.tableau import ButcherTableau, hermite_extension

SQRT2, SQRT3, SQRT6, SQRT15 = (math.sqrt(x) for x in (2, 3, 6, 15))
HAIRER = "Hairer and Wanner (1996), Solving Ordinary Differential Equations II"


def basis_integrals(nodes: np.ndarray) -> np.ndarray:
    """Integrals from 0 to theta of the Lagrange polynomials on ``nodes``: coefficients of theta, theta^2, ..."""
    n = len(nodes)
    powers = np.arange(n)
    return np.asarray(np.linalg.inv(np.power.outer(nodes, powers)).T / (powers + 1.0))


def _collocation(name: str, order: int, nodes: list[float]) -> ButcherTableau:
    """The method whose polynomial satisfies the differential equation at the nodes; it is its own extension."""
    c = np.array(nodes)
    dense = basis_integrals(c)
    a = np.power.outer(c, np.arange(1, len(c) + 1)) @ dense.T
    return ButcherTableau(
        name=name,
        order=order,
        c=c,
        a=a,
        b=a[-1] if c[-1] == 1.0 else dense.sum(axis=1),
        dense=dense,
        dense_order=len(c),
        reference=HAIRER,
    )


def _with_slopes_at_ends(method: ButcherTableau) -> ButcherTableau:
    """A Gauss method whose extension also has the slopes at both ends, two evaluations: one order more."""
    s = method.stages
    a_extra = np.zeros((2, s + 2))
    a_extra[1, :s] = method.b
    return replace(
        method,
        c_extra=np.array([0.0, 1.0]),
        a_extra=a_extra,
        dense=_exact_end(basis_integrals(np.array([*method.c, 0.0, 1.0])), np.append(method.b, [0.0, 0.0])),
        dense_order=s + 1,
    )


def _exact_end(dense: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The same polynomials up to rounding, with b(1) = b to the last bit as far as a sum allows."""
    out = dense.copy()
    out[:, -1] += b - out.sum(axis=1)
    return out


def _radau5() -> ButcherTableau:
    """Radau IIA of order five with f(t0, y0) as a further stage, for Hairer and Wanner's estimate of the error.

    That stage is the last one of the step before. It has no weight in the solution. The estimate, of a method of order
    three, is h (gamma f(t0, y0) + sum_i e_i k_i), filtered by (I - h gamma J)^-1, where 1 / gamma is the real
    eigenvalue of the inverse of a (section IV.8). With the slope at t0 the extension is of order four instead of three,
    and its slope is continuous.
    """
    radau = _collocation("radauIIA5", 5, [(4.0 - SQRT6) / 10.0, (4.0 + SQRT6) / 10.0, 1.0])
    a = np.zeros((4, 4))
    a[1:, 1:] = radau.a
    eigenvalues = np.linalg.eigvals(radau.a)
    gamma = float(eigenvalues[np.argmin(np.abs(eigenvalues.imag))].real)
    # Weights of the embedded method: gamma f(t0, y0) is given, the others follow from quadrature of order three.
    powers = np.arange(3)
    right = 1.0 / (powers + 1.0) - gamma * np.array([1.0, 0.0, 0.0])
    embedded = np.append(gamma, np.linalg.solve(np.power.outer(radau.c, powers).T, right))
    nodes = np.append(0.0, radau.c)
    b = np.append(0.0, radau.b)
    return ButcherTableau(
        name="radauIIA5",
        order=5,
        c=nodes,
        a=a,
        b=b,
        b_error=b - embedded,
        error_order=3,
        error_filter=gamma,
        dense=_exact_end(basis_integrals(nodes), b),
        dense_order=4,
        reference=f"{HAIRER}, sections IV.5 and IV.8",
    )


def _trapezoid() -> ButcherTableau:
    a = np.array([[0.0, 0.0], [0.5, 0.5]])
    return ButcherTableau(
        name="trapezoid",
        order=2,
        c=np.array([0.0, 1.0]),
        a=a,
        b=a[-1],
        dense=hermite_extension(a[-1]),
        dense_order=2,
        reference=HAIRER,
    )


def _sdirk2() -> ButcherTableau:
    gamma = 1.0 - SQRT2 / 2.0
    a = np.array([[gamma, 0.0], [1.0 - gamma, gamma]])
    c = np.array([gamma, 1.0])
    return ButcherTableau(
        name="sdirk2",
        order=2,
        c=c,
        a=a,
        b=a[-1],
        dense=_exact_end(basis_integrals(c), a[-1]),
        dense_order=2,
        reference="Alexander (1977), SIAM J. Numer. Anal. 14",
    )


def _trbdf2() -> ButcherTableau:
    """The trapezoidal rule to 2 - sqrt(2) of the step, then BDF2; the estimate is that of Hosea and Shampine."""
    gamma, w = 1.0 - SQRT2 / 2.0, SQRT2 / 4.0
    a = np.array([[0.0, 0.0, 0.0], [gamma, gamma, 0.0], [w, w, gamma]])
    embedded = np.array([(1.0 - w) / 3.0, (3.0 * w + 1.0) / 3.0, gamma / 3.0])
    return ButcherTableau(
        name="trbdf2",
        order=2,
        c=np.array([0.0, 2.0 * gamma, 1.0]),
        a=a,
        b=a[-1],
        b_error=a[-1] - embedded,
        error_order=3,
        error_filter=gamma,
        dense=_damped_extension(a, 2),
        dense_order=2,
        reference="Bank et al. (1985), IEEE Trans. CAD 4; Hosea and Shampine (1996), Appl. Numer. Math. 20",
    )


def _kvaerno3() -> ButcherTableau:
    """L-stable for the middle root of gamma^3 - 3 gamma^2 + 3/2 gamma - 1/6; both solutions are stages."""
    gamma = float(np.sort(np.roots([1.0, -3.0, 1.5, -1.0 / 6.0]).real)[1])
    third = (1.0 - 2.0 * gamma) / (4.0 * gamma)  # order two at c = 1
    second = 1.0 / (12.0 * gamma * (1.0 - 2.0 * gamma))  # order three
    last = 0.5 - gamma - 2.0 * gamma * second
    a = np.array(
        [
            [0.0, 0.0, 0.0, 0.0],
            [gamma, gamma, 0.0, 0.0],
            [1.0 - gamma - third, third, gamma, 0.0],
            [1.0 - gamma - second - last, second, last, gamma],
        ]
    )
    return ButcherTableau(
        name="kvaerno3",
        order=3,
        c=np.array([0.0, 2.0 * gamma, 1.0, 1.0]),
        a=a,
        b=a[-1],
        b_error=a[-1] - a[-2],
        error_order=2,
        dense=_damped_extension(a, 3),
        dense_order=3,
        reference="Kvaerno (2004), BIT Numer. Math. 44",
    )


KVAERNO5 = [
    [],
    [0.26],
    [0.13, 0.84033320996790809],
    [0.22371961478320505, 0.47675532319799699, -0.06470895363112615],
    [0.16648564323248321, 0.10450018841591720, 0.03631482272098715, -0.13090704451073998],
    [0.13855640231268224, 0.0, -0.04245337201752043, 0.02446657898003141, 0.61943039072480676],
    [
        0.13659751177640291,
        0.0,
        -0.05496908796538376,
        -0.04118626728321046,
        0.62993304899016403,
        0.06962479448202728,
    ],
]


def _kvaerno5() -> ButcherTableau:
    a = np.zeros((7, 7))
    for i, row in enumerate(KVAERNO5):
        a[i, : i + 1] = [*row, 0.26 if i else 0.0]
    return ButcherTableau(
        name="kvaerno5",
        order=5,
        c=a.sum(axis=1),
        a=a,
        b=a[-1],
        b_error=a[-1] - a[-2],
        error_order=4,
        dense=_damped_extension(a, 4, unused=1),
        dense_order=4,
        reference="Kvaerno (2004), BIT Numer. Math. 44; extension: see implicit_tableaus.py",
    )


def _damped_extension(a: np.ndarray, order: int, *, unused: int | None = None) -> np.ndarray:
    """An extension of a stiffly accurate method with an explicit first stage that does not feel errors of that stage.

    The first stage is the last one of the step before, with an error that depends on the length of that step. In a
    stiff component the states Y_i do not depend on it, so that an error e in k_1 changes the other k_i by r_i e, where
    a r = 0 in all rows but the first. The extension has sum_i b_i(theta) r_i = 0. (With the Hermite cubic, for one, the
    error inside of a step would contain h e, and shrink with h alone if the step is repeated.)

    It is a polynomial in theta of degree ``order``, ends in y1 with the slope f(t1, y1), and does not use the stage
    ``unused``. What is free then makes the defects in the conditions of the next order least in the mean square.
    """
    s = len(a)
    used = [i for i in range(s) if i != unused]
    powers, unit = np.arange(1, order + 1), np.eye(order)
    trees = rooted_trees(order + 1)
    phi, within = trees.elementary_weights(a), trees.vertices <= order
    reaction = np.append(1.0, -np.linalg.solve(a[1:, 1:], a[1:, 0]))
    conditions, values = [], []  # linear in dense[used], power by power of theta, then at the end
    for d in range(order):
        for column, vertices, gamma in zip(phi.T, trees.vertices, trees.density, strict=True):
            if vertices <= order:
                conditions.append(np.kron(column[used], unit[d]))
                values.append(1.0 / gamma if vertices == d + 1 else 0.0)
        conditions.append(np.kron(reaction[used], unit[d]))
        values.append(0.0)
    for theta, target in ((np.ones(order), a[-1]), (1.0 * powers, np.eye(s)[-1])):
        conditions += [np.kron(row, theta) for row in np.eye(len(used))]
        values += target[used].tolist()
    least, wanted = [], []
    for point, w in np.transpose(np.polynomial.legendre.leggauss(8)).tolist():
        middle = 0.5 * (point + 1.0)
        for column, gamma in zip(phi[:, ~within].T, trees.density[~within], strict=True):
            least.append(math.sqrt(w) * np.kron(column[used], middle**powers))
            wanted.append(math.sqrt(w) * middle ** (order + 1) / gamma)
    solution = np.linalg.lstsq(np.array(conditions), np.array(values))[0]
    _, singular, directions = np.linalg.svd(np.array(conditions))
    free = directions[(singular > 1e-10 * singular[0]).sum() :].T
    if free.size:
        remaining = np.array(wanted) - np.array(least) @ solution
        solution = solution + free @ np.linalg.lstsq(np.array(least) @ free, remaining, rcond=1e-8)[0]
    dense = np.zeros((s, order))
    dense[used] = solution.reshape(len(used), order)
    return _exact_end(dense, a[-1])


IMPLICIT_TABLEAUS: dict[str, ButcherTableau] = {
    method.name: method
    for method in (
        _collocation("implicit_euler", 1, [1.0]),
        _collocation("implicit_midpoint", 2, [0.5]),
        _trapezoid(),
        _sdirk2(),
        _trbdf2(),
        _collocation("radauIIA3", 3, [1.0 / 3.0, 1.0]),
        _kvaerno3(),
        _with_slopes_at_ends(_collocation("gl4", 4, [0.5 - SQRT3 / 6.0, 0.5 + SQRT3 / 6.0])),
        _radau5(),
        _kvaerno5(),
        _with_slopes_at_ends(_collocation("gl6", 6, [0.5 - SQRT15 / 10.0, 0.5, 0.5 + SQRT15 / 10.0])),
    )
}
