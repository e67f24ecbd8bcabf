"""What ``solve`` returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quadjoint.solver.interpolation import DenseOutput
from quadjoint.solver.problem import Problem, Stats
from quadjoint.solver.times import shift


class Solution:
    """A solved problem: ``ts``, ``ys``, ``stats``, ``event_time``; called with a time, the state at that time.

    The continuous solution is differentiable in the time; in the rest where the solve was recorded by autograd
    (``gradient="direct"``).

    >>> import torch, quadjoint as qj
    >>> sol = qj.solve(lambda t, y: -y, torch.ones(1), torch.tensor([0.0, 1.0]), rtol=1e-6)
    >>> sol.ys.shape, round(float(sol(0.5)), 4)
    (torch.Size([2, 1]), 0.6065)
    """

    def __init__(self, ts: Tensor, ys: Any, stats: Stats, event_time: Tensor | None, problem: Problem) -> None:
        self.ts, self.ys, self.stats, self.event_time = ts, ys, stats, event_time
        self._layout, self._dense = problem.f.layout, DenseOutput(problem.steps)
        self._f, self._per_sample = problem.f, problem.f.time_map is not None

    def __call__(self, t: float | Tensor) -> Any:
        """The state at ``t``, a number or a tensor of times of any shape."""
        if self._per_sample:
            raise ValueError("Continuous output is for times shared by the batch, t of shape (K,).")
        if not self._dense.steps:
            raise ValueError("The solve had a single time, so there is no interval to evaluate in.")
        times = torch.as_tensor(t, dtype=torch.float64, device="cpu").detach()
        first, last = self._dense.steps[0].t0, self._dense.steps[-1].t1
        low, high = min(first, last), max(first, last)
        slack = 1e-6 * (high - low)
        flat = times.reshape(-1).tolist()
        for value in flat:
            if not low - slack <= value <= high + slack:
                raise ValueError(f"t = {value:.6g} lies outside the solved interval [{low:.6g}, {high:.6g}].")
        values = self._dense.many([min(max(v, low), high) for v in flat])
        if isinstance(t, Tensor) and t.requires_grad:
            values = shift(self._f, values, t.reshape(-1))
        return self._layout.unpack(values.reshape((*times.shape, *values.shape[1:])), leading=times.ndim)
