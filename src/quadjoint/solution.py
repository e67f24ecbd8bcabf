"""What ``solve`` returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.conclude import Solved
from quadjoint.gradient.base import evaluate
from quadjoint.gradient.flow import shift
from quadjoint.solver.clocks import on_the_host
from quadjoint.solver.state import Layout


class Solution:
    """A solved problem: ``ts``, ``ys``, ``stats``; called with a time, the state at that time.

    The continuous solution is differentiable as ``ys`` is, by the same gradient, and in the time. After an event,
    ``ts`` and the continuous solution end at it; ``event_time`` is its time, ``event_index`` the entry of the event
    function that changed its sign. ``status`` says how each of the samples of a batch ended that were solved with
    ``independent=True``.

    >>> import torch, quadjoint as qj
    >>> sol = qj.solve(lambda t, y: -y, torch.ones(1), torch.tensor([0.0, 1.0]), rtol=1e-6)
    >>> sol.ys.shape, round(float(sol(0.5)), 4)
    (torch.Size([2, 1]), 0.6065)
    """

    def __init__(self, solved: Solved, layout: Layout) -> None:
        self.ts, self.ys, self.stats = solved.ts, solved.ys, solved.stats
        self.event_time, self.event_index, self.status = solved.event_time, solved.event_index, solved.status
        self._parts, self._layout, self._flow = [p for p in solved.parts if p.steps], layout, solved.flow
        self._interval, self._clock = solved.interval, solved.clock

    @private.outside_of_compile
    def __call__(self, t: float | Tensor) -> Any:
        """The state at ``t``, a number or a tensor of times of any shape.

        If the samples have times or steps of their own, ``t`` is a number or has shape (K,), for all samples, or (B, K)
        with times for each; the states have shape (K, B, ...), as ``ys`` has. Past the end of a sample that ended early
        they are NaN.
        """
        if not self._parts:
            raise ValueError("The solve had a single time, so there is no interval to evaluate in.")
        if self._clock is not None:
            return self._of_samples(t)
        times = torch.as_tensor(t, dtype=torch.float64, device="cpu").detach()
        values = self._evaluate([self._within_interval(value) for value in times.reshape(-1).tolist()])
        if isinstance(t, Tensor) and private.is_differentiated(t):
            values = shift(self._flow, values, t.reshape(-1))
        return self._layout.unpack(values.reshape((*times.shape, *values.shape[1:])), leading=times.ndim)

    def _of_samples(self, t: float | Tensor) -> Any:
        assert self._clock is not None
        given = torch.as_tensor(t, dtype=None if isinstance(t, Tensor) else torch.float64)
        batch = self._clock.batch
        if given.ndim > 2 or (given.ndim == 2 and len(given) != batch):
            raise ValueError(
                f"The samples have times of their own; t must be a number or have shape (K,) or ({batch}, K), got "
                f"{tuple(given.shape)}."
            )
        times = given.T if given.ndim == 2 else given.reshape(-1, 1).expand(-1, batch)  # (K, B)
        places, past = self._clock.locate(on_the_host(times))
        values = self._evaluate(places.reshape(-1), np.tile(np.arange(batch), len(times)))
        values = values.reshape(*times.shape, *values.shape[1:])
        if private.is_differentiated(given):
            values = shift(self._flow, values, times)
        if past.any():
            lost = torch.as_tensor(past, device=values.device).reshape(*past.shape, *(1,) * (values.ndim - 2))
            values = values.masked_fill(lost, torch.nan)
        if given.ndim == 0:
            return self._layout.unpack(values[0])
        return self._layout.unpack(values, leading=1)

    def _within_interval(self, t: float) -> float:
        """A time within the solved interval, to which rounding may have to bring it back."""
        low, high = sorted(self._interval)
        slack = 1e-6 * (high - low)
        if not low - slack <= t <= high + slack:
            raise ValueError(f"t = {t:.6g} lies outside the solved interval [{low:.6g}, {high:.6g}].")
        return min(max(t, low), high)

    def _evaluate(self, times: Sequence[float] | np.ndarray, rows: np.ndarray | None = None) -> Tensor:
        """States at times on the clock of the steps, of the samples ``rows`` if they are given."""
        first, last = self._interval
        sign = 1.0 if last >= first else -1.0
        points, like = np.asarray(times), self._parts[0].steps[0].y0
        if not len(points):
            return like.new_empty(0, *(like.shape if rows is None else like.shape[1:]))
        device = like.device
        part_of = np.zeros(len(points), dtype=int)
        for part in self._parts[:-1]:
            part_of += sign * points > sign * part.steps[-1].t1
        order = np.argsort(part_of, kind="stable")
        states = []
        for n, part in enumerate(self._parts):
            own = order[part_of[order] == n]
            if len(own):
                chosen = None if rows is None else torch.as_tensor(rows[own], device=device)
                states.append(evaluate(part, points[own].tolist(), chosen))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return torch.cat(states)[torch.as_tensor(back, device=device)] if len(states) > 1 else states[0]
