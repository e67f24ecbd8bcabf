"""Explicit Runge-Kutta methods as data: coefficients, embedded error estimate, continuous extension.

A tableau checks itself when it is built, against Butcher's order conditions over all rooted trees, for
the solution, for the embedded solution and, as polynomials in theta, for the continuous extension. A
mistyped digit is therefore an error at import and not a slow loss of accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quadjoint.solver.interpolation import HERMITE, powers
from quadjoint.solver.methods.rooted_trees import rooted_trees

# The coefficients are rationals or decimals rounded to float64; the largest, in the continuous extension
# of dopri8, are near 1e3. The worst condition holds to 3e-13; the rest is room for another summation order.
TOLERANCE = 1e-11


@dataclass(frozen=True, eq=False)
class ButcherTableau:
    """An explicit Runge-Kutta method with s stages and e extra stages for points inside a step.

    k_i = f(t0 + c_i h, y0 + h sum_j a_ij k_j),  y1 = y0 + h sum_i b_i k_i,
    y1 - yhat1 = h sum_i b_error_i k_i,  y(t0 + theta h) = y0 + h sum_i b_i(theta) k_i.

    The extra stages enter b_i(theta) only; they are evaluated when a point inside the step is wanted. A method without
    ``dense`` gets the cubic Hermite polynomial (of order one, the straight line), whose slope at t1 is the last stage
    of a method that is FSAL, and else an extra stage, which is the first stage of the next step.

    >>> import torch, quadjoint as qj
    >>> tableau = qj.TABLEAUS["dopri5"]
    >>> tableau.order, tableau.stages, tableau.fsal
    (5, 7, True)
    """

    name: str
    order: int
    c: np.ndarray  # (s,)
    a: np.ndarray  # (s, s), strictly lower triangular
    b: np.ndarray  # (s,)
    b_error: np.ndarray | None = None  # (s,); None for a method without error estimate (fixed steps)
    error_order: int | None = None  # order of the embedded solution with weights b - b_error
    c_extra: np.ndarray = None  # type: ignore[assignment]  # (e,)
    a_extra: np.ndarray = None  # type: ignore[assignment]  # (e, s + e), strictly lower triangular below a
    dense: np.ndarray = None  # type: ignore[assignment]  # (s + e, degree): b_i(theta) = sum_d dense[i, d - 1] theta**d
    dense_order: int = 0  # order of the continuous extension, uniformly in theta
    reference: str = ""

    def __post_init__(self) -> None:
        self._extend()
        for field in ("c", "a", "b", "b_error", "c_extra", "a_extra", "dense"):
            value = getattr(self, field)
            if value is not None:
                array = np.array(value, dtype=np.float64)  # an own copy, so that nobody else can change it
                array.setflags(write=False)
                object.__setattr__(self, field, array)
        self._check_shapes()
        self._check_rows()
        self._check_orders()

    def _extend(self) -> None:
        """Fill in what was left out: no extra stages, or a continuous extension with what it needs."""
        dense: Any = self.dense
        c_extra: Any = self.c_extra
        values: dict[str, Any] = {}
        if dense is None:
            b, rows = np.asarray(self.b, dtype=np.float64), np.asarray(self.a, dtype=np.float64)
            e = 0 if self.order == 1 or np.array_equal(rows[-1], b) else 1
            padded = np.append(b, np.zeros(e))
            values = {
                "c_extra": np.ones(e),
                "a_extra": np.tile(padded, (e, 1)),
                "dense": b[:, None] if self.order == 1 else hermite_extension(padded),
                "dense_order": min(self.order, 3),
            }
        elif c_extra is None:
            values = {"c_extra": np.empty(0), "a_extra": np.empty((0, len(self.b)))}
        for field, value in values.items():
            object.__setattr__(self, field, value)

    @property
    def numbers(self) -> bytes:
        """What tells the steps of two methods apart, whatever their names are."""
        arrays = (self.a, self.b, self.c, self.b_error)
        return b"".join(b"none" if x is None else x.tobytes() for x in arrays)

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
        return powers(points, self.dense.shape[1]) @ self.dense.T

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
            "c": (s,),
            "a": (s, s),
            "b": (s,),
            "b_error": (s,),
            "c_extra": (e,),
            "a_extra": (e, s + e),
        }
        for field, shape in expected.items():
            array = getattr(self, field)
            if array is not None and array.shape != shape:
                raise ValueError(f"{self.name}: {field} must have shape {shape}, got {array.shape}")
        if self.dense.ndim != 2 or len(self.dense) != s + e:
            raise ValueError(f"{self.name}: dense must have {s + e} rows, got shape {self.dense.shape}")
        if (self.b_error is None) != (self.error_order is None):
            raise ValueError(f"{self.name}: b_error and error_order must be given together or both be None")
        if self.order < 1 or (self.error_order is not None and self.error_order < 1):
            raise ValueError(f"{self.name}: orders start at 1, got {self.order} and {self.error_order}")
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
        row = int(defect.argmax())
        if not defect[row] <= TOLERANCE:
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
        jump = np.abs(self.dense.sum(axis=1) - end).max()
        if not jump <= TOLERANCE:
            raise ValueError(f"{self.name}: the continuous extension misses y1 at theta = 1 by {jump:.1e}")

    def _require(self, what: str, order: int, defect: np.ndarray) -> None:
        worst = int(defect.argmax())
        if not defect[worst] <= TOLERANCE:  # so written that NaN fails, here and above
            rho = rooted_trees(order).vertices[worst]
            raise ValueError(
                f"{self.name}: {what} should have order {order}, but misses the order condition of "
                f"a tree with {rho} vertices by {defect[worst]:.1e}"
            )

    def _all_stages(self) -> np.ndarray:
        """The matrix of the stages and the extra stages, (s + e, s + e)."""
        return np.vstack([np.pad(self.a, ((0, 0), (0, self.extra_stages))), self.a_extra])


def hermite_extension(b: np.ndarray) -> np.ndarray:
    """The cubic through y0 and y1 with slopes f(t0, y0), the first stage, and f(t1, y1), the last."""
    dense = np.outer(b, HERMITE[0])
    dense[0] += HERMITE[1]
    dense[-1] += HERMITE[2]
    return dense
