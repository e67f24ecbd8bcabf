"""Explicit Runge-Kutta methods as data: coefficients, embedded error estimate, continuous extension.

A tableau checks itself when it is built, against Butcher's order conditions over all rooted trees, for
the solution, for the embedded solution and, as polynomials in theta, for the continuous extension. A
mistyped digit is therefore an error at import and not a slow loss of accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from quadjoint import _coefficients as coefficients
from quadjoint.rooted_trees import rooted_trees

# The coefficients are rationals or decimals rounded to float64; the largest, in the continuous extension
# of dopri8, are near 1e3, so that the conditions hold to about 1e-12 there and to 1e-14 elsewhere.
TOLERANCE = 1e-11


@dataclass(frozen=True, eq=False)
class ButcherTableau:
    """An explicit Runge-Kutta method with s stages and e extra stages for points inside a step.

    k_i = f(t0 + c_i h, y0 + h sum_j a_ij k_j),  y1 = y0 + h sum_i b_i k_i,
    y1 - yhat1 = h sum_i b_error_i k_i,  y(t0 + theta h) = y0 + h sum_i b_i(theta) k_i.

    The extra stages enter b_i(theta) only; they are evaluated when a point inside the step is wanted.
    """

    name: str
    order: int
    c: np.ndarray  # (s,)
    a: np.ndarray  # (s, s), strictly lower triangular
    b: np.ndarray  # (s,)
    b_error: np.ndarray | None  # (s,); None for a method without error estimate (fixed steps)
    error_order: int | None  # order of the embedded solution with weights b - b_error
    c_extra: np.ndarray  # (e,)
    a_extra: np.ndarray  # (e, s + e), strictly lower triangular below a
    dense: np.ndarray  # (s + e, degree): b_i(theta) = sum_d dense[i, d - 1] theta**d
    dense_order: int  # order of the continuous extension, uniformly in theta
    reference: str

    def __post_init__(self) -> None:
        for field in ("c", "a", "b", "b_error", "c_extra", "a_extra", "dense"):
            value = getattr(self, field)
            if value is not None:
                array = np.array(value, dtype=np.float64)  # an own copy, so that nobody else can change it
                array.setflags(write=False)
                object.__setattr__(self, field, array)
        self._check_shapes()
        self._check_rows()
        self._check_orders()

    @property
    def stages(self) -> int:
        """Number of stages of a step."""
        return len(self.b)

    @property
    def extra_stages(self) -> int:
        """Number of further stages that the continuous extension needs."""
        return len(self.c_extra)

    @property
    def fsal(self) -> bool:
        """Whether the last stage is f(t1, y1), and so the first stage of the next step."""
        return self.stages > 1 and self.c[-1] == 1.0 and bool(np.array_equal(self.a[-1], self.b))

    @property
    def first_extra_is_next(self) -> bool:
        """Whether the first extra stage is f(t1, y1), and so the first stage of the next step."""
        if self.extra_stages == 0 or self.c_extra[0] != 1.0:
            return False
        return bool(np.array_equal(self.a_extra[0], np.append(self.b, np.zeros(self.extra_stages))))

    def dense_weights(self, theta: Sequence[float] | np.ndarray) -> np.ndarray:
        """The weights b_i(theta), shape (m, s + e), of the m points t0 + theta h."""
        points = np.asarray(theta, dtype=np.float64)
        if points.ndim != 1:
            raise ValueError(f"theta must have one dimension, got shape {points.shape}")
        return np.power.outer(points, np.arange(1, self.dense.shape[1] + 1)) @ self.dense.T

    def linear(self) -> ButcherTableau:
        """The same method with the straight line between y0 and y1: b_i(theta) = theta b_i."""
        return replace(
            self,
            c_extra=np.empty(0),
            a_extra=np.empty((0, self.stages)),
            dense=self.b[:, None],
            dense_order=1,
        )

    def _check_shapes(self) -> None:
        s, e = self.b.size, self.c_extra.size
        expected: dict[str, tuple[int, ...]] = {
            "c": (s,), "a": (s, s), "b": (s,), "b_error": (s,), "c_extra": (e,), "a_extra": (e, s + e),
        }  # fmt: skip
        for field, shape in expected.items():
            array = getattr(self, field)
            if array is not None and array.shape != shape:
                raise ValueError(f"{self.name}: {field} must have shape {shape}, got {array.shape}")
        if self.dense.ndim != 2 or len(self.dense) != s + e:
            raise ValueError(f"{self.name}: dense must have {s + e} rows, got shape {self.dense.shape}")
        if (self.b_error is None) != (self.error_order is None):
            raise ValueError(f"{self.name}: b_error and error_order must be given together or both be None")
        if not 1 <= self.dense_order <= self.dense.shape[1]:
            raise ValueError(
                f"{self.name}: a continuous extension of degree {self.dense.shape[1]} "
                f"cannot have order {self.dense_order}"
            )

    def _check_rows(self) -> None:
        a, c = self._all_stages(), np.append(self.c, self.c_extra)
        if np.any(np.triu(a)):
            raise ValueError(f"{self.name}: a must be strictly lower triangular (the method is explicit)")
        defect = np.abs(a.sum(axis=1) - c)
        if defect.max() > TOLERANCE:
            row = int(defect.argmax())
            raise ValueError(f"{self.name}: row {row} of a sums to c[{row}] only up to {defect[row]:.1e}")

    def _check_orders(self) -> None:
        trees = rooted_trees(max(self.order, self.error_order or 1, self.dense_order))
        phi = trees.elementary_weights(self._all_stages())  # (s + e, trees)
        exact = 1.0 / trees.density
        self._require("b", self.order, np.abs(self.b @ phi[: self.stages] - exact)[: trees.count(self.order)])
        if self.b_error is not None and self.error_order is not None:
            defect = np.abs((self.b - self.b_error) @ phi[: self.stages] - exact)
            self._require("b - b_error", self.error_order, defect[: trees.count(self.error_order)])
        target = np.zeros((self.dense.shape[1], len(trees)))  # theta**rho / gamma, by powers of theta
        within = trees.count(self.dense_order)
        target[trees.vertices[:within] - 1, np.arange(within)] = exact[:within]
        defect = np.abs(self.dense.T @ phi - target)[:, :within].max(axis=0)
        self._require("the continuous extension", self.dense_order, defect)
        end = np.append(self.b, np.zeros(self.extra_stages))
        if (jump := np.abs(self.dense.sum(axis=1) - end).max()) > TOLERANCE:
            raise ValueError(f"{self.name}: the continuous extension misses y1 at theta = 1 by {jump:.1e}")

    def _require(self, what: str, order: int, defect: np.ndarray) -> None:
        if (worst := int(defect.argmax())) >= 0 and not defect[worst] <= TOLERANCE:
            rho = rooted_trees(order).vertices[worst]
            raise ValueError(
                f"{self.name}: {what} should have order {order}, but misses the order condition of "
                f"a tree with {rho} vertices by {defect[worst]:.1e}"
            )

    def _all_stages(self) -> np.ndarray:
        """The matrix of the stages and the extra stages, (s + e, s + e)."""
        return np.vstack([np.pad(self.a, ((0, 0), (0, self.extra_stages))), self.a_extra])


def _square(rows: Sequence[Sequence[float]]) -> np.ndarray:
    """The rows of a tableau, padded with zeros to a square matrix."""
    return np.array([[*row, *[0.0] * (len(rows) - len(row))] for row in rows])


def _hermite(b: np.ndarray, first: int, last: int) -> np.ndarray:
    """The cubic through y0 and y1 with slopes k_first = f(t0, y0) and k_last = f(t1, y1), as weights."""
    dense = np.outer(b, [0.0, 3.0, -2.0])
    dense[first] += [1.0, -2.0, 1.0]
    dense[last] += [0.0, -1.0, 1.0]
    return dense


def _with_hermite(
    name: str,
    order: int,
    c: Sequence[float],
    a: Sequence[Sequence[float]],
    b: Sequence[float],
    reference: str,
    b_error: Sequence[float] | None = None,
) -> ButcherTableau:
    """A method of order 2 to 4 with cubic Hermite interpolation, which has order min(order, 3).

    The slope at t1 is the last stage of a method that is FSAL. Any other method gets it as an extra stage,
    which costs nothing where a next step follows, since it is that step's first stage.
    """
    s, matrix, weights = len(b), _square(a), np.array(b, dtype=np.float64)
    fsal = c[-1] == 1 and np.array_equal(matrix[-1], weights)
    e = 0 if fsal else 1
    padded = np.append(weights, np.zeros(e))
    return ButcherTableau(
        name=name,
        order=order,
        c=np.array(c, dtype=np.float64),
        a=matrix,
        b=weights,
        b_error=None if b_error is None else np.array(b_error),
        error_order=None if b_error is None else order - 1,
        c_extra=np.ones(e),
        a_extra=np.tile(padded, (e, 1)),
        dense=_hermite(padded, 0, s + e - 1),
        dense_order=min(order, 3),
        reference=reference,
    )


def _with_own_extension(
    name: str,
    order: int,
    c: Sequence[float],
    a: Sequence[Sequence[float]],
    b_error: np.ndarray,
    dense: np.ndarray,
    dense_order: int,
    reference: str,
    c_extra: Sequence[float] = (),
    a_extra: np.ndarray | None = None,
) -> ButcherTableau:
    """A pair of orders p(p - 1) whose last stage is f(t1, y1), with a continuous extension of its own."""
    matrix = _square(a)
    return ButcherTableau(
        name=name,
        order=order,
        c=np.array(c, dtype=np.float64),
        a=matrix,
        b=matrix[-1],
        b_error=b_error,
        error_order=order - 1,
        c_extra=np.array(c_extra, dtype=np.float64),
        a_extra=np.empty((0, len(c))) if a_extra is None else a_extra,
        dense=dense,
        dense_order=dense_order,
        reference=reference,
    )


def _dopri5() -> ButcherTableau:
    """Shampine's quartic: the cubic Hermite polynomial, bent to pass through his value in the middle."""
    b = _square(coefficients.DOPRI5_A)[-1]
    hermite = _hermite(b, 0, len(b) - 1)
    missing = np.array(coefficients.DOPRI5_MIDDLE) - hermite @ [1 / 2, 1 / 4, 1 / 8]
    bump = 16.0 * np.outer(missing, [0.0, 1.0, -2.0, 1.0])  # 16 theta^2 (1 - theta)^2, one in the middle
    return _with_own_extension(
        "dopri5",
        order=5,
        c=coefficients.DOPRI5_C,
        a=coefficients.DOPRI5_A,
        b_error=np.array(coefficients.DOPRI5_B_ERROR),
        dense=np.pad(hermite, ((0, 0), (0, 1))) + bump,
        dense_order=4,
        reference="Dormand and Prince (1980), J. Comput. Appl. Math. 6; Shampine (1986), Math. Comp. 46",
    )


def _tsit5() -> ButcherTableau:
    return _with_own_extension(
        "tsit5",
        order=5,
        c=coefficients.TSIT5_C,
        a=coefficients.TSIT5_A,
        b_error=np.array(coefficients.TSIT5_B_ERROR),
        dense=np.array(coefficients.TSIT5_DENSE),
        dense_order=4,
        reference="Tsitouras (2011), Comput. Math. Appl. 62",
    )


def _dopri8() -> ButcherTableau:
    s, e = len(coefficients.DOPRI8_C), len(coefficients.DOPRI8_C_EXTRA)
    used = [0, *range(5, s + e)]  # stages 2 to 5 have no weight
    a_extra = np.zeros((e, s + e))
    for row, values in zip(a_extra, coefficients.DOPRI8_A_EXTRA, strict=True):
        row[used[: len(values)]] = values
    dense = np.zeros((s + e, 7))
    dense[0, 0] = 1.0
    dense[used, 1:] = coefficients.DOPRI8_DENSE
    return _with_own_extension(
        "dopri8",
        order=8,
        c=coefficients.DOPRI8_C,
        a=coefficients.DOPRI8_A,
        b_error=_square(coefficients.DOPRI8_A)[-1] - np.array(coefficients.DOPRI8_B_EMBEDDED),
        c_extra=coefficients.DOPRI8_C_EXTRA,
        a_extra=a_extra,
        dense=dense,
        dense_order=7,
        reference="Prince and Dormand (1981), J. Comput. Appl. Math. 7; extension computed for this library",
    )


def _low_order() -> tuple[ButcherTableau, ...]:
    heun, kutta = "Heun (1900), Z. Math. Phys. 45", "Kutta (1901), Z. Math. Phys. 46"
    euler = ButcherTableau(
        name="euler",
        order=1,
        c=np.zeros(1),
        a=np.zeros((1, 1)),
        b=np.ones(1),
        b_error=None,
        error_order=None,
        c_extra=np.empty(0),
        a_extra=np.empty((0, 1)),
        dense=np.ones((1, 1)),
        dense_order=1,
        reference="Euler (1768), Institutiones calculi integralis",
    )
    third, thirds = [[], [1 / 3], [0, 2 / 3]], [[], [1 / 3], [-1 / 3, 1], [1, -1, 1]]
    bosh3 = [[], [1 / 2], [0, 3 / 4], [2 / 9, 1 / 3, 4 / 9]]
    return (
        euler,
        _with_hermite("midpoint", 2, [0, 1 / 2], [[], [1 / 2]], [0, 1], "Runge (1895), Math. Ann. 46"),
        _with_hermite("heun2", 2, [0, 1], [[], [1]], [1 / 2, 1 / 2], heun),
        _with_hermite("heun3", 3, [0, 1 / 3, 2 / 3], third, [1 / 4, 0, 3 / 4], heun),
        _with_hermite("rk4", 4, [0, 1 / 3, 2 / 3, 1], thirds, [1 / 8, 3 / 8, 3 / 8, 1 / 8], kutta),
        _with_hermite("adaptive_heun", 2, [0, 1], [[], [1]], [1 / 2, 1 / 2], heun, b_error=[1 / 2, -1 / 2]),
        _with_hermite(
            "fehlberg2",
            2,
            [0, 1 / 2, 1],
            [[], [1 / 2], [1 / 256, 255 / 256]],
            [1 / 512, 255 / 256, 1 / 512],
            "Fehlberg (1969), NASA Technical Report R-315",
            b_error=[-1 / 512, 0, 1 / 512],
        ),
        _with_hermite(
            "bosh3",
            3,
            [0, 1 / 2, 3 / 4, 1],
            bosh3,
            [2 / 9, 1 / 3, 4 / 9, 0],
            "Bogacki and Shampine (1989), Appl. Math. Lett. 2",
            b_error=[2 / 9 - 7 / 24, 1 / 3 - 1 / 4, 4 / 9 - 1 / 3, -1 / 8],
        ),
    )


TABLEAUS: dict[str, ButcherTableau] = {
    method.name: method for method in (_dopri5(), _tsit5(), _dopri8(), *_low_order())
}
