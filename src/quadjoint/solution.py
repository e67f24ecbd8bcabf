"""What ``solve`` returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.gradient.base import Part, evaluate
from quadjoint.gradient.flow import Flow, shift
from quadjoint.solver.state import Layout
from quadjoint.solver.stats import Stats


class Solution:
    """A solved problem: ``ts``, ``ys``, ``stats``, ``event_time``; called with a time, the state at that time.

    The continuous solution is differentiable as ``ys`` is, by the same gradient, and in the time. After an event,
    ``ts`` and the continuous solution end at it.

    >>> import torch, quadjoint as qj
    >>> sol = qj.solve(lambda t, y: -y, torch.ones(1), torch.tensor([0.0, 1.0]), rtol=1e-6)
    >>> sol.ys.shape, round(float(sol(0.5)), 4)
    (torch.Size([2, 1]), 0.6065)
    """

    def __init__(
        self,
        ts: Tensor,
        ys: Any,
        *,
        stats: Stats,
        event_time: Tensor | None,
        parts: Sequence[Part],
        layout: Layout,
        flow: Flow,
        interval: tuple[float, float],
    ) -> None:
        self.ts, self.ys, self.stats, self.event_time = ts, ys, stats, event_time
        self._parts, self._layout, self._flow, self._interval = [p for p in parts if p.steps], layout, flow, interval

    @private.outside_of_compile
    def __call__(self, t: float | Tensor) -> Any:
        """The state at ``t``, a number or a tensor of times of any shape."""
        if self._flow.per_sample:
            raise ValueError("Continuous output is for times shared by the batch, t of shape (K,).")
        if not self._parts:
            raise ValueError("The solve had a single time, so there is no interval to evaluate in.")
        times = torch.as_tensor(t, dtype=torch.float64, device="cpu").detach()
        values = self._evaluate([self._within_interval(value) for value in times.reshape(-1).tolist()])
        if isinstance(t, Tensor) and private.is_differentiated(t):
            values = shift(self._flow, values, t.reshape(-1))
        return self._layout.unpack(values.reshape((*times.shape, *values.shape[1:])), leading=times.ndim)

    def _within_interval(self, t: float) -> float:
        """A time within the solved interval, to which rounding may have to bring it back."""
        low, high = sorted(self._interval)
        slack = 1e-6 * (high - low)
        if not low - slack <= t <= high + slack:
            raise ValueError(f"t = {t:.6g} lies outside the solved interval [{low:.6g}, {high:.6g}].")
        return min(max(t, low), high)

    def _evaluate(self, times: list[float]) -> Tensor:
        if len(self._parts) == 1:
            return evaluate(self._parts[0], times)
        first, last = self._interval
        sign = 1.0 if last >= first else -1.0
        change = sign * self._parts[0].steps[-1].t1
        split = [int(sign * t > change) for t in times]
        states = [
            evaluate(part, [t for t, k in zip(times, split, strict=True) if k == n]) if n in split else None
            for n, part in enumerate(self._parts)
        ]
        rows = [iter(()) if x is None else iter(x.unbind()) for x in states]
        return torch.stack([next(rows[k]) for k in split])
