"""Runge-Kutta methods as data: coefficients, embedded error estimate, continuous extension.

A tableau checks itself when it is built, against Butcher's order conditions over all rooted trees, for
the solution, for the embedded solution and, as polynomials in theta, for the continuous extension. A
mistyped digit is therefore an error at import and not a slow loss of accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from quadjoint.solver.interpolation import HERMITE, powers
from quadjoint.solver.methods.rooted_trees import rooted_trees

# The coefficients are rationals or decimals rounded to float64; the largest, in the continuous extension
# of dopri8, are near 1e3. The worst condition holds to 3e-13; the rest is room for another summation order.
TOLERANCE = 1e-11


@dataclass(frozen=True, eq=False)
class ButcherTableau:
    """A Runge-Kutta method, explicit or implicit, with s stages and e extra stages for points inside a step.

    k_i = f(t0 + c_i h, y0 + h sum_j a_ij k_j),  y1 = y0 + h sum_i b_i k_i,
    y1 - yhat1 = h sum_i b_error_i k_i,  y(t0 + theta h) = y0 + h sum_i b_i(theta) k_i.

    The extra stages enter b_i(theta) only; they are evaluated when a point inside the step is wanted. A method without
    ``dense`` gets the cubic Hermite polynomial (of order one, the straight line), whose slopes at t0 and t1 are stages
    if the first is f(t0, y0) and the last f(t1, y1), and else extra stages.

    ``error_filter`` is the gamma of (I - h gamma J)^-1, with J = df/dy, by which the error estimate of an implicit
    method is multiplied so that it stays bounded in stiff components.

    >>> import torch, quadjoint as qj
    >>> tableau = qj.TABLEAUS["dopri5"]
    >>> tableau.order, tableau.stages, tableau.fsal
    (5, 7, True)
    """

    name: str
    order: int
    c: np.ndarray  # (s,)
    a: np.ndarray  # (s, s), strictly lower triangular for an explicit method
    b: np.ndarray  # (s,)
    b_error: np.ndarray | None = None  # (s,); None for a method without error estimate (fixed steps)
    error_order: int | None = None  # order of the embedded solution with weights b - b_error
    c_extra: np.ndarray = None  # type: ignore[assignment]  # (e,)
    a_extra: np.ndarray = None  # type: ignore[assignment]  # (e, s + e), strictly lower triangular below a
    dense: np.ndarray = None  # type: ignore[assignment]  # (s + e, degree): b_i(theta) = sum_d dense[i, d - 1] theta**d
    dense_order: int = 0  # order of the continuous extension, uniformly in theta
    reference: str = ""
    error_filter: float | None = None

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
            values = _default_extension(self.order, np.array(self.a, np.float64), np.array(self.b, np.float64))
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

    @cached_property
    def fsal(self) -> bool:
        """Whether the last stage is f(t1, y1), and so the first stage of the next step."""
        return self.stages > 1 and self.stiffly_accurate and not self.a[0].any()

    @property
    def stiffly_accurate(self) -> bool:
        """Whether the last stage is at y1."""
        return self.c[-1] == 1.0 and bool(np.array_equal(self.a[-1], self.b))

    @cached_property
    def explicit(self) -> bool:
        """Whether every stage depends on those before it only."""
        return not np.triu(self.a).any()

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """Ranges of stages that have to be solved for together, one after another: as short as they can be."""
        ends = [i for i in range(1, self.stages + 1) if not self.a[:i, i:].any()]
        return list(zip([0, *ends[:-1]], ends, strict=True))

    @property
    def estimate_order(self) -> int:
        """The power of h with which the error estimate falls; that of the step's own error if there is none."""
        return 1 + (self.order if self.error_order is None else min(self.order, self.error_order))

    @cached_property
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

    def stability(self, z: complex) -> complex:
        """R(z) of y1 = R(h lambda) y0 for y' = lambda y: 1 + z b^T (I - z a)^-1 (1, ..., 1)."""
        matrix = np.eye(self.stages) - z * self.a
        return complex(1.0 + z * (self.b @ np.linalg.solve(matrix, np.ones(self.stages))))

    def linear(self) -> ButcherTableau:
        """The same method with the straight line between y0 and y1: b_i(theta) = theta b_i."""
        return replace(self, **_linear_extension(self.b))

    def cubic(self) -> ButcherTableau:
        """The same method with the cubic Hermite polynomial, also if it is of order one."""
        return replace(self, **_cubic_extension(self.order, self.a, self.b))

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
        a, c = self.all_stages, np.append(self.c, self.c_extra)
        if np.triu(a)[self.stages :].any():
            raise ValueError(f"{self.name}: a_extra must be strictly lower triangular (extra stages are explicit)")
        for first, last in self.blocks:
            block = self.a[first:last, first:last]
            if block.any() and not np.linalg.cond(block) < 1.0 / TOLERANCE:
                raise ValueError(
                    f"{self.name}: stages {first} to {last - 1} depend on each other by a matrix without inverse"
                )
        defect = np.abs(a.sum(axis=1) - c)
        row = int(defect.argmax())
        if not defect[row] <= TOLERANCE:
            raise ValueError(f"{self.name}: row {row} of a sums to c[{row}] only up to {defect[row]:.1e}")

    def _check_orders(self) -> None:
        trees = rooted_trees(max(self.order, self.error_order or 1, self.dense_order))
        phi = trees.elementary_weights(self.all_stages)  # (s + e, trees)
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

    @property
    def all_stages(self) -> np.ndarray:
        """The matrix of the stages and the extra stages, (s + e, s + e)."""
        return np.vstack([np.pad(self.a, ((0, 0), (0, self.extra_stages))), self.a_extra])


def hermite_extension(b: np.ndarray, first: int = 0, last: int = -1) -> np.ndarray:
    """The cubic through y0 and y1 with slopes f(t0, y0), stage ``first``, and f(t1, y1), stage ``last``."""
    dense = np.outer(b, HERMITE[0])
    dense[first] += HERMITE[1]
    dense[last] += HERMITE[2]
    return dense


def _default_extension(order: int, a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    """The cubic; of order one, the straight line."""
    return _linear_extension(b) if order == 1 else _cubic_extension(order, a, b)


def _linear_extension(b: np.ndarray) -> dict[str, Any]:
    return {"c_extra": np.empty(0), "a_extra": np.empty((0, len(b))), "dense": b[:, None], "dense_order": 1}


def _cubic_extension(order: int, a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    """The cubic Hermite polynomial with the extra stages that its slopes need."""
    s = len(b)
    starts, ends = not a[0].any(), np.array_equal(a[-1], b)  # slopes that are stages
    extra = [*([0.0] if not starts else []), *([1.0] if not ends else [])]
    padded = np.append(b, np.zeros(len(extra)))
    slopes = 0 if starts else s, s - 1 if ends else -1
    return {
        "c_extra": np.array(extra),
        "a_extra": np.outer(extra, padded),
        "dense": hermite_extension(padded, *slopes),
        "dense_order": min(order, 3),
    }
