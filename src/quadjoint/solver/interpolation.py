"""Accepted steps and the continuous solution that they make up."""

from __future__ import annotations

import bisect
import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.solver.protocols import Clock, Step, VectorField


class DenseOutput:
    """The solution as a function of time, from the accepted steps in the order they were taken."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.sign = 1.0 if not steps or steps[-1].t1 >= steps[0].t0 else -1.0
        self._ends = [self.sign * step.t1 for step in steps]

    def step_at(self, t: float) -> Step:
        index = bisect.bisect_left(self._ends, self.sign * t)
        return self.steps[min(index, len(self.steps) - 1)]

    def __call__(self, t: float) -> Tensor:
        return self.step_at(t).evaluate([t])[0]

    def many(self, times: Sequence[float]) -> Tensor:
        """States at several times (any order), stacked."""
        return torch.stack([self(t) for t in times])

    def at(self, times: Sequence[float], rows: Tensor | None) -> Tensor:
        """As ``many``; with ``rows``, the state of sample ``rows[m]`` at ``times[m]``, shape (m, *sample)."""
        if rows is None:
            return self.many(times)
        points = np.asarray(times)
        which = np.minimum(np.searchsorted(self._ends, self.sign * points), len(self.steps) - 1)
        order = np.argsort(which, kind="stable")
        chunks = []
        for part in np.split(order, np.flatnonzero(np.diff(which[order])) + 1):
            chunks.append(self.steps[which[part[0]]].scatter(rows[torch.as_tensor(part)], points[part]))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return torch.cat(chunks)[torch.as_tensor(back, device=rows.device)]


def hermite_weights(theta: float) -> tuple[float, float, float, float]:
    """Weights of (y0, y1, h f0, h f1) in the cubic Hermite interpolant at ``theta`` in [0, 1]."""
    h01 = theta * theta * (3 - 2 * theta)
    return 1 - h01, h01, theta * (1 - theta) ** 2, theta * theta * (theta - 1)


class HermiteStep:
    """A step known by its ends and the derivatives there; between them lies the cubic Hermite polynomial.

    ``f1``, the derivative at the end, is evaluated when it is needed. ``carry`` and ``retry`` are handed to the next
    step and to another attempt at this one. ``linear`` draws a straight line instead of the cubic; ``exact_slopes``
    says that f0 is f(t0, y0) and no estimate of it.
    """

    ratio = None

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
        linear: bool = False,
        exact_slopes: bool = True,
    ) -> None:
        self.f, self.t0, self.t1, self.y0, self.y1, self.f0, self._f1 = f, t0, t1, y0, y1, f0, f1
        self.carry, self.retry, self.error, self.clock = carry, retry, error, clock
        self.linear, self.exact_slopes = linear, exact_slopes
        self.grad = torch.is_grad_enabled()

    @property
    def f1(self) -> Tensor:
        if self._f1 is None:
            with torch.set_grad_enabled(self.grad):
                self._f1 = self.f(self.t1 if self.clock is None else self.clock[1], self.y1)
        return self._f1

    def smooth(self) -> HermiteStep:
        """The same step with the cubic through its ends."""
        if not self.linear:
            return self
        out = copy.copy(self)
        out.linear = False
        return out

    def _blend(self, theta: Any, h: Any) -> Tensor:
        if self.linear:
            return self.y0 + theta * (self.y1 - self.y0)
        w0, w1, v0, v1 = hermite_weights(theta)
        return w0 * self.y0 + w1 * self.y1 + (v0 * h) * self.f0 + (v1 * h) * self.f1

    def evaluate(self, times: Sequence[float]) -> Tensor:
        h = self.t1 - self.t0
        return torch.stack([self.y1 if t == self.t1 else self._blend((t - self.t0) / h, h) for t in times])

    def evaluate_at(self, times: Tensor) -> Tensor:
        t0, t1 = self.clock if self.clock is not None else (self.t0, self.t1)
        h = t1 - t0
        return torch.stack([self._blend(((t - t0) / h).to(self.y0.dtype), h) for t in times])

    def scatter(self, rows: Tensor, times: np.ndarray) -> Tensor:
        states = self.evaluate(times.tolist())
        return states[torch.arange(len(rows), device=rows.device), rows]
