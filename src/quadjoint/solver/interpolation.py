"""Accepted steps and the continuous solution that they make up."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.solver.methods.sums import like_state
from quadjoint.solver.protocols import Clock, Nudge, Step, Time, VectorField


class DenseOutput:
    """The solution as a function of time, from the accepted steps in the order they were taken."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.sign = 1.0 if not steps or steps[-1].t1 >= steps[0].t0 else -1.0
        self._ends = [self.sign * step.t1 for step in steps]

    def at(self, times: Sequence[float], rows: Tensor | None) -> Tensor:
        """States at times in any order, stacked; with ``rows``, that of sample ``rows[m]`` at ``times[m]``."""
        points = np.asarray(times)
        which = np.minimum(np.searchsorted(self._ends, self.sign * points), len(self.steps) - 1)
        order = np.lexsort((self.sign * points, which))
        chunks = []
        for part in np.split(order, np.flatnonzero(np.diff(which[order])) + 1):
            step, own = self.steps[which[part[0]]], points[part]
            chunks.append(_inside(step, own) if rows is None else step.scatter(rows[torch.as_tensor(part)], own))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        states = torch.cat(chunks)
        return states[torch.as_tensor(back, device=states.device)]


def _inside(step: Step, times: np.ndarray) -> Tensor:
    """States at times within a step, differentiable in its ends if these are."""
    if step.clock is None or not any(private.is_differentiated(end) for end in step.clock):
        return step.evaluate(times.tolist())
    return step.evaluate_at(torch.as_tensor(times, dtype=torch.float64).to(step.clock[0]))


# Coefficients of theta, theta^2 and theta^3 in the cubic Hermite polynomial, of (y1 - y0, h f0, h f1).
HERMITE = np.array([[0.0, 3.0, -2.0], [1.0, -2.0, 1.0], [0.0, -1.0, 1.0]])


Numbers = TypeVar("Numbers", np.ndarray, Tensor)


def powers(theta: Numbers, degree: int) -> Numbers:
    """theta, theta^2, ... along a new last dimension; theta may be a tensor that is differentiated in."""
    if isinstance(theta, Tensor):
        return torch.stack([theta**d for d in range(1, degree + 1)], dim=-1)
    return np.power.outer(theta, np.arange(1, degree + 1))


class Polynomial:
    """A step as y0 + sum_d c_d theta^d: less to keep than its stages."""

    __slots__ = ("coefficients", "nudge", "slope", "t0", "t1", "y0")

    def __init__(self, step: Step, coefficients: Tensor, *, slope: bool, nudge: Nudge = (0, 0)) -> None:
        self.t0, self.t1, self.y0, self.coefficients = step.t0, step.t1, step.y0, coefficients
        self.nudge, self.slope = nudge, slope  # whether the first coefficient is h f(t0, y0)

    def states(self, theta: Numbers) -> Tensor:
        """At fractions of the step, flat: shape (len(theta), numbers)."""
        weights = torch.as_tensor(powers(theta, len(self.coefficients)), dtype=self.y0.dtype, device=self.y0.device)
        return torch.addmm(self.y0.reshape(1, -1), weights, self.coefficients)

    def start(self) -> tuple[Tensor, Tensor] | None:
        """The state at the start and the derivative there, if it was a stage of the step."""
        if not self.slope:
            return None
        return self.y0, (self.coefficients[0] / (self.t1 - self.t0)).reshape(self.y0.shape)


class HermiteStep:
    """A step known by its ends and the derivatives there; between them lies the cubic Hermite polynomial.

    ``f1``, the derivative at the end, is evaluated when it is needed, on the side of the step by the ``nudge`` that it
    was given. ``carry`` and ``retry`` are handed to the next step and to another attempt at this one. ``linear`` draws
    a straight line instead of the cubic; ``exact_slopes`` says that f0 is f(t0, y0) and no estimate of it.
    """

    ratio = None
    settled = False

    def __init__(
        self,
        f: VectorField,
        t0: float,
        t1: float,
        *,
        y0: Tensor,
        y1: Tensor,
        f0: Tensor,
        f1: Tensor | None = None,
        carry: Any = None,
        retry: Any = None,
        error: Tensor | None = None,
        clock: Clock | None = None,
        nudge: Nudge = (0, 0),
        linear: bool = False,
        exact_slopes: bool = True,
    ) -> None:
        self.f, self.t0, self.t1, self.y0, self.y1, self.f0, self._f1 = f, t0, t1, y0, y1, f0, f1
        self.carry, self.retry, self.error, self.clock = carry, retry, error, clock
        self.nudge, self.linear, self.exact_slopes = nudge, linear, exact_slopes
        self.grad = torch.is_grad_enabled()

    @property
    def slope(self) -> Tensor:
        return self.f0

    @property
    def f1(self) -> Tensor:
        if self._f1 is None:
            with torch.set_grad_enabled(self.grad):
                self._f1 = self.f(self.t1 if self.clock is None else self.clock[1], self.y1, self.nudge[1])
        return self._f1

    def smooth(self) -> HermiteStep:
        """The same step with the cubic through its ends."""
        if not self.linear:
            return self
        out = copy.copy(self)
        out.linear = False
        return out

    def polynomial(self) -> Polynomial:
        return self._polynomial(self.t1 - self.t0)

    def _polynomial(self, h: Time) -> Polynomial:
        """The polynomial of a step of length h, which may be differentiated in."""
        rise = (self.y1 - self.y0).reshape(1, -1)
        if self.linear:
            return Polynomial(self, rise, slope=False)
        parts = torch.cat([rise, (self.f0 * h).reshape(1, -1), (self.f1 * h).reshape(1, -1)])
        table = torch.as_tensor(HERMITE.T.copy(), dtype=parts.dtype, device=parts.device)
        return Polynomial(self, table @ parts, slope=self.exact_slopes, nudge=self.nudge)

    def evaluate(self, times: Sequence[float]) -> Tensor:
        theta = (np.asarray(times, dtype=np.float64) - self.t0) / (self.t1 - self.t0)
        out = self.polynomial().states(theta).reshape(len(times), *self.y0.shape)
        if times[-1] == self.t1:
            out = torch.cat([out[:-1], self.y1[None]])
        return out

    def evaluate_at(self, times: Tensor) -> Tensor:
        t0, t1 = self.clock if self.clock is not None else (self.t0, self.t1)
        states = self._polynomial(like_state(t1 - t0, self.y0)).states((times - t0) / (t1 - t0))
        return states.reshape(len(times), *self.y0.shape)

    def scatter(self, rows: Tensor, times: np.ndarray) -> Tensor:
        states = self.evaluate(times.tolist())
        return states[torch.arange(len(rows), device=rows.device), rows]
