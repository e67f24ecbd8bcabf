"""States at the times that were asked for, collected while the solve passes them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from quadjoint.solver.protocols import Step
from quadjoint.solver.rows import Rows


class Collector(Protocol):
    """Takes states from the steps of a solve."""

    def begin(self, y0: Tensor) -> None: ...

    def collect(self, step: Step) -> None: ...

    def take(self) -> Tensor: ...


class Observer:
    """Collects the states at given times, in the order of integration.

    The first time is the initial one, unless ``start`` is: then the initial state is not observed.
    """

    def __init__(self, times: Sequence[float], points: Tensor | None = None, start: float | None = None) -> None:
        self.times = list(times)
        self.points = points  # the same times as a tensor, if they are differentiated on a fixed grid
        self.start = self.times[0] if start is None else start
        self.next = 1 if start is None else 0
        self.states = Rows()
        self.sign = -1.0 if self.times[-1] < self.start else 1.0

    @property
    def interval(self) -> tuple[float, float]:
        return self.start, self.times[-1]

    def begin(self, y0: Tensor) -> None:
        if self.next == 1:
            self.states.add(y0[None])

    def rest(self, t: float) -> Callable[[], Observer]:
        """Observers of what is still to come at ``t``."""
        return partial(Observer, self.times[self.next :], start=t)

    def collect(self, step: Step) -> None:
        first, times, end = self.next, self.times, self.sign * step.t1
        while self.next < len(times) and self.sign * times[self.next] <= end:
            self.next += 1
        if self.next == first:
            return
        if self.next - first == 1 and times[first] == step.t1:
            self.states.add(step.y1[None])
        elif self.points is not None and step.clock is not None:
            self.states.add(step.evaluate_at(self.points[first : self.next]))
        else:
            self.states.add(step.evaluate(times[first : self.next]))

    def finish_at(self, time: float, step: Step) -> None:
        """End at an event inside ``step`` instead of at the last time."""
        self.times[-1] = time
        self.collect(step)

    def take(self) -> Tensor:
        """What was collected since the last call, in the order of time; a copy, which the caller may change."""
        return self.states.take()[0]

    def arrange(self, values: Tensor) -> Tensor:
        """All that was collected, as the result of the solve."""
        return values


class SampleObserver:
    """As ``Observer``, for a batch in which each sample has its own increasing times in [0, end], shape (B, K)."""

    points = None

    def __init__(self, times: np.ndarray, end: float = 1.0) -> None:
        self.times, self.end = times, end
        flat = times.T.reshape(-1)  # (K * B), as the output lies
        self.order = np.argsort(flat, kind="stable")
        self.sorted = flat[self.order]
        self.shape = times.T.shape
        self.rows = self.order % times.shape[0]
        self.start, self.next = 0.0, int(np.searchsorted(self.sorted, 0.0, side="right"))
        self.states = Rows()

    @property
    def interval(self) -> tuple[float, float]:
        return self.start, self.end

    def rest(self, t: float) -> Callable[[], SampleObserver]:
        """Observers of what is still to come at ``t``."""

        def fresh() -> SampleObserver:
            out = copy.copy(self)
            out.sorted, out.rows, out.start, out.next, out.states = times, rows, t, 0, Rows()
            return out

        times, rows = self.sorted[self.next :], self.rows[self.next :]
        return fresh

    def begin(self, y0: Tensor) -> None:
        self.states.add(y0[self.index(0, self.next, y0.device)])

    def index(self, first: int, last: int, device: torch.device) -> Tensor:
        """The samples of the observations ``first`` to ``last`` in order of time."""
        return torch.as_tensor(self.rows[first:last], device=device)

    def collect(self, step: Step) -> None:
        first = self.next
        self.next = int(np.searchsorted(self.sorted, step.t1, side="right"))
        if self.next > first:
            rows = self.index(first, self.next, step.y0.device)
            self.states.add(step.scatter(rows, self.sorted[first : self.next]))

    def take(self) -> Tensor:
        """As ``Observer.take``; one row for each observation of a sample, shape (n, *sample)."""
        return self.states.take()[0]

    def arrange(self, values: Tensor) -> Tensor:
        """All that was collected, shape (K, B, *sample)."""
        back = np.empty_like(self.order)
        back[self.order] = np.arange(len(self.order))
        out = values[torch.as_tensor(back, device=values.device)]
        return out.reshape(*self.shape, *values.shape[1:])
