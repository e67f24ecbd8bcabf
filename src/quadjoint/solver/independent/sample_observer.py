"""States at the times of each sample, collected while its own steps pass them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from quadjoint.solver.independent.samples import Samples
from quadjoint.solver.protocols import SampleStep, Step


@dataclass(frozen=True)
class Glance:
    """States of some samples within one step: of sample ``rows[m]`` at the fraction ``theta[m]`` of it.

    Without ``rows`` all samples are meant, without ``theta`` the state before the step.
    """

    step: int
    rows: Tensor | None = None
    theta: Tensor | None = None

    def look(self, step: SampleStep) -> Tensor:
        """One row of the batch each, shape (m, *sample)."""
        assert self.rows is not None and self.theta is not None
        return step.scatter_at(self.rows, self.theta)


def place(glances: Sequence[Glance], batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Sample and time of every state, on the clock on which step n lasts from n to n + 1; by two looks of the host."""
    rows, thetas = _at_host([glance.rows for glance in glances]), _at_host([glance.theta for glance in glances])
    every = np.arange(batch)
    samples = [every if found is None else found for found in rows]
    times = [
        np.full(len(found), float(glance.step)) if theta is None else glance.step + theta
        for glance, found, theta in zip(glances, samples, thetas, strict=True)
    ]
    return np.concatenate(samples), np.concatenate(times)


def _at_host(tensors: Sequence[Tensor | None]) -> list[np.ndarray | None]:
    """All of these brought there at once; numbers with a fraction become doubles."""
    present = [x for x in tensors if x is not None]
    if not present:
        return [None] * len(tensors)
    joined = torch.cat(present).cpu()
    joined = joined.double() if joined.is_floating_point() else joined
    parts = iter(np.split(joined.numpy(), np.cumsum([len(x) for x in present])[:-1]))
    return [None if x is None else next(parts) for x in tensors]


class StepObserver:
    """Collects the states at the times of every sample.

    The result of the solve is a row for each time and sample; ``positions`` say which row a state that was collected
    belongs to. All is on the device of the state; how many states a step has is read with the rest of its verdict.
    """

    points = None

    def __init__(self, samples: Samples) -> None:
        self.samples, (self.batch, self.count) = samples, samples.times.shape
        self.chunks: list[Tensor] = []
        self.positions: list[Tensor] = []
        self.glances: list[Glance] = []
        increasing = samples.times * samples.sign[:, None]
        if samples.padded is not None:
            increasing = increasing.masked_fill(samples.padded, torch.inf)
        self.inner = increasing[:, 1:-1].contiguous() if self.count > 2 else None
        self.every = torch.arange(self.batch, device=samples.times.device)
        self.passed = torch.zeros_like(self.every)  # how many of the inner times of each sample
        self.ahead = self.passed

    def begin(self, y0: Tensor) -> None:
        self._add(y0, self.every, Glance(0))

    def rest(self) -> Callable[[], StepObserver]:
        """Observers of what is still to come; what they collect is arranged together with what was collected before."""

        def fresh() -> StepObserver:
            out = copy.copy(self)
            out.chunks, out.glances = [], []
            return out

        return fresh

    def count_until(self, t: Tensor) -> Tensor:
        """How many inner times, if there are any, lie before ``t`` on clocks that run forwards."""
        assert self.inner is not None
        self.ahead = torch.searchsorted(self.inner, t[:, None], right=True)[:, 0]
        return (self.ahead - self.passed).sum()

    def collect(self, n: int, step: SampleStep, total: int) -> None:
        """Take the ``total`` states that were counted from the ``n``-th step."""
        if total == 0:
            return
        assert step.clock is not None and self.inner is not None
        counts = self.ahead - self.passed
        rows = torch.repeat_interleave(self.every, counts, output_size=total)
        which = torch.arange(total, device=rows.device) - (counts.cumsum(0) - counts - self.passed)[rows] + 1
        t0, t1 = (x.reshape(-1)[rows] for x in step.clock)
        theta = ((self.samples.times[rows, which] - t0) / (t1 - t0)).clamp(0.0, 1.0)
        self.take_glance(step, Glance(n, rows, theta), which * self.batch + rows)
        self.passed = self.ahead

    def take_glance(self, step: SampleStep, glance: Glance, positions: Tensor) -> None:
        """Add states inside of a step."""
        self._add(glance.look(step), positions, glance)

    def end_at(self, n: int, step: SampleStep, rows: Tensor, theta: Tensor) -> None:
        """Samples that end inside of the ``n``-th step."""
        self.take_glance(step, Glance(n, rows, theta), (self.count - 1) * self.batch + rows)

    def finish(self, n: int, y: Tensor, rows: Tensor | None) -> None:
        """The states in which samples (all, without ``rows``) have ended, ``n`` steps being taken."""
        if self.count > 1:
            kept = self.every if rows is None else rows
            self._add(y if rows is None else y[rows], (self.count - 1) * self.batch + kept, Glance(n, rows))

    def _add(self, states: Tensor, positions: Tensor, glance: Glance) -> None:
        self.chunks.append(states)
        self.positions.append(positions)
        self.glances.append(glance)

    def take(self) -> Tensor:
        """What was collected since the last call, one row for each state, shape (n, *sample)."""
        chunks, self.chunks = self.chunks, []
        return torch.cat(chunks) if len(chunks) > 1 else chunks[0].clone()

    def arrange(self, values: Tensor) -> Tensor:
        """All that was collected, shape (K, B, *sample); the last state of a sample for times that it did not reach."""
        positions = torch.cat(self.positions)
        missing = torch.ones(self.count * self.batch, dtype=torch.bool, device=values.device)
        missing = missing.index_fill_(0, positions, False).reshape(self.count, self.batch, *(1,) * (values.ndim - 1))
        out = values.new_zeros(self.count * self.batch, *values.shape[1:]).index_copy(0, positions, values)
        out = out.reshape(self.count, self.batch, *values.shape[1:])
        return torch.where(missing, out[-1], out)


class GlanceObserver:
    """Collects the same states again when the steps of an independent solve, from the ``first`` on, are taken again."""

    points = None

    def __init__(self, glances: list[Glance], first: int) -> None:
        self.glances, self.first = glances, first
        self.chunks: list[Tensor] = []
        self.y = torch.empty(0)

    def begin(self, y0: Tensor) -> None:
        self.y = y0
        self._pass(self.first)

    def collect(self, step: Step) -> None:
        n = round(step.t0)
        while len(self.chunks) < len(self.glances) and self._next.step == n and self._next.theta is not None:
            self.chunks.append(self._next.look(cast(SampleStep, step)))
        self.y = step.y1
        self._pass(n + 1)

    @property
    def _next(self) -> Glance:
        return self.glances[len(self.chunks)]

    def _pass(self, n: int) -> None:
        """Take states between steps."""
        while len(self.chunks) < len(self.glances) and self._next.step == n and self._next.theta is None:
            rows = self._next.rows
            self.chunks.append(self.y if rows is None else self.y[rows])

    def take(self) -> Tensor:
        return torch.cat(self.chunks)
