"""The Runge-Kutta methods that come with the library; the implicit ones are in implicit_tableaus.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quadjoint.solver.methods import coefficients, coefficients_dopri8
from quadjoint.solver.methods.implicit_tableaus import IMPLICIT_TABLEAUS
from quadjoint.solver.methods.tableau import ButcherTableau, hermite_extension


def _square(rows: Sequence[Sequence[float]]) -> np.ndarray:
    """The rows of a tableau, padded with zeros to a square matrix."""
    return np.array([[*row, *[0.0] * (len(rows) - len(row))] for row in rows])


def _low_order(
    name: str,
    order: int,
    a: Sequence[Sequence[float]],
    b: Sequence[float],
    reference: str,
    b_error: Sequence[float] | None = None,
) -> ButcherTableau:
    """A method of order 1 with linear, of order 2 to 4 with cubic Hermite interpolation (order up to 3)."""
    matrix = _square(a)
    return ButcherTableau(
        name=name,
        order=order,
        c=matrix.sum(axis=1),
        a=matrix,
        b=np.array(b),
        b_error=None if b_error is None else np.array(b_error),
        error_order=None if b_error is None else order - 1,
        reference=reference,
    )


def _dopri5() -> ButcherTableau:
    """Shampine's quartic: the cubic Hermite polynomial, bent to pass through his value in the middle."""
    a = _square(coefficients.DOPRI5_A)
    hermite = hermite_extension(a[-1])
    missing = np.array(coefficients.DOPRI5_MIDDLE) - hermite @ [1 / 2, 1 / 4, 1 / 8]
    bump = 16.0 * np.outer(missing, [0.0, 1.0, -2.0, 1.0])  # 16 theta^2 (1 - theta)^2, one in the middle
    return ButcherTableau(
        name="dopri5",
        order=5,
        c=np.array(coefficients.DOPRI5_C),
        a=a,
        b=a[-1],
        b_error=a[-1] - np.array(coefficients.DOPRI5_B_EMBEDDED),
        error_order=4,
        dense=np.pad(hermite, ((0, 0), (0, 1))) + bump,
        dense_order=4,
        reference="Dormand and Prince (1980), J. Comput. Appl. Math. 6; Shampine (1986), Math. Comp. 46",
    )


def _tsit5() -> ButcherTableau:
    a = _square(coefficients.TSIT5_A)
    return ButcherTableau(
        name="tsit5",
        order=5,
        c=np.array(coefficients.TSIT5_C),
        a=a,
        b=a[-1],
        b_error=np.array(coefficients.TSIT5_B_ERROR),
        error_order=4,
        dense=np.array(coefficients.TSIT5_DENSE),
        dense_order=4,
        reference="Tsitouras (2011), Comput. Math. Appl. 62",
    )


def _dopri8() -> ButcherTableau:
    a = _square(coefficients_dopri8.DOPRI8_A)
    s, e = len(a), len(coefficients_dopri8.DOPRI8_C_EXTRA)
    used = [0, *range(5, s + e)]  # stages 2 to 5 have no weight
    a_extra = np.zeros((e, s + e))
    for row, values in zip(a_extra, coefficients_dopri8.DOPRI8_A_EXTRA, strict=True):
        row[used[: len(values)]] = values
    dense = np.zeros((s + e, 7))
    dense[0, 0] = 1.0
    dense[used, 1:] = coefficients_dopri8.DOPRI8_DENSE
    return ButcherTableau(
        name="dopri8",
        order=8,
        c=np.array(coefficients_dopri8.DOPRI8_C),
        a=a,
        b=a[-1],
        b_error=a[-1] - np.array(coefficients_dopri8.DOPRI8_B_EMBEDDED),
        error_order=7,
        c_extra=np.array(coefficients_dopri8.DOPRI8_C_EXTRA),
        a_extra=a_extra,
        dense=dense,
        dense_order=7,
        reference="Prince and Dormand (1981), J. Comput. Appl. Math. 7; extension: see coefficients_dopri8.py",
    )


TABLEAUS: dict[str, ButcherTableau] = {
    method.name: method
    for method in (
        _dopri5(),
        _tsit5(),
        _dopri8(),
        *(_low_order(name, *values) for name, values in coefficients.LOW_ORDER.items()),
        *IMPLICIT_TABLEAUS.values(),
    )
}
