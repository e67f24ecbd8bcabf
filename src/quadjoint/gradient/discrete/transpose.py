"""Transposed Runge-Kutta steps: what the sweeps of the discrete adjoint share.

The adjoints of one step lie in one matrix, row 0 for dL/dy0 and row 1 + i for dL/dk_i; each transposed operation of
the step is then a single product or rank-one update of that matrix.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quadjoint.gradient.discrete.checkpoints import StepRecord
from quadjoint.solver.integrate import SampleObserver
from quadjoint.solver.methods.runge_kutta import RungeKutta
from quadjoint.solver.problem import Problem


class Observations:
    """Hands the gradients of the observations to the steps in which they lie."""

    def __init__(self, problem: Problem, grad_ys: Tensor) -> None:
        self.tableau = problem.solver.stepper.tableau
        self.plan = problem.plan
        self.observer = problem.make_observer()
        if isinstance(self.observer, SampleObserver):
            flat = grad_ys.reshape(-1, *grad_ys.shape[2:])
            self.grads = flat[torch.as_tensor(self.observer.order, device=grad_ys.device)]
            self.times: list[float] | np.ndarray = self.observer.sorted
        else:
            self.grads, self.times = grad_ys, problem.times

    def initial(self, a: Tensor) -> Tensor:
        """dL/dy0 from the adjoint at the start and the observations made there."""
        if not isinstance(self.observer, SampleObserver):
            return a + self.grads[0]
        first = self.plan[0][0] if self.plan else len(self.times)
        rows = self.observer.index(0, first, a.device)
        return a.clone().index_add_(0, rows, self.grads[:first])

    def inside(self, record: StepRecord) -> tuple[int, int, Tensor | None]:
        """The range of observations before the end of the step, and the gradient of one exactly at its end."""
        first, last = self.plan[record.index]
        if isinstance(self.observer, SampleObserver) or first == last or self.times[last - 1] != record.t1:
            return first, last, None
        return first, last - 1, self.grads[last - 1]

    def spread(self, record: StepRecord, first: int, last: int, adjoints: Tensor) -> None:
        """Add the gradients of observations ``first`` to ``last`` to the adjoints, by the transposed interpolant."""
        h = record.t1 - record.t0
        theta = (np.asarray(self.times[first:last]) - record.t0) / h
        weights = np.empty((last - first, 1 + record.stages))
        weights[:, 0] = 1.0
        weights[:, 1:] = self.tableau.dense_weights(theta) * h
        w = torch.as_tensor(weights.T.copy(), dtype=adjoints.dtype, device=adjoints.device)
        g = self.grads[first:last]
        if isinstance(self.observer, SampleObserver):
            rows = self.observer.index(first, last, adjoints.device)
            parts = w[:, :, None] * g.reshape(1, len(g), -1)
            adjoints.view(len(w), self.observer.shape[1], -1).index_add_(1, rows, parts)
        else:
            adjoints.addmm_(w, g.reshape(len(g), -1))


class StepTransposer:
    """Opens a step's matrix of adjoints and transposes its stages one by one."""

    def __init__(self, problem: Problem, observations: Observations, grad_ys: Tensor) -> None:
        self.problem, self.observations = problem, observations
        self.method: RungeKutta = problem.solver.stepper
        tableau = self.method.tableau
        total = tableau.stages + tableau.extra_stages
        self.dtype, self.device = grad_ys.dtype, grad_ys.device
        self.like = grad_ys
        # Row i: how stage input Y_i depends on (y0, k_0, ..., k_{i-1}), in units of h.
        rows = np.zeros((total, 1 + total))
        rows[:, 0] = 1.0
        for i, entries in enumerate(self.method.rows):
            for j, w in entries:
                rows[i, 1 + j] = w
        end = np.zeros(1 + total)
        end[0] = 1.0
        for j, w in self.method.weights:
            end[1 + j] = w
        self.rows = torch.as_tensor(rows, dtype=self.dtype, device=self.device)
        self.end = torch.as_tensor(end, dtype=self.dtype, device=self.device)
        self.used_by_end = [False] * total
        for j, _ in self.method.weights:
            self.used_by_end[j] = True
        self.next_stage = self.method.stages - 1 if self.method.fsal else self.method.stages

    def zero(self) -> Tensor:
        """The adjoint behind the last step."""
        return torch.zeros(self.problem.f.shape.numel(), dtype=self.dtype, device=self.device)

    def open(self, record: StepRecord, a: Tensor, carried: Tensor | None, through_end: bool = True,
             ) -> tuple[Tensor, Tensor, list[bool]]:  # fmt: skip
        """Adjoints of a step before its own stages are transposed, its (flat) dL/dy1, and which stages matter so far.

        ``through_end=False`` leaves y1 = y0 + h sum b_i k_i to the caller.
        """
        first, last, at_end = self.observations.inside(record)
        if at_end is not None:
            a = a + at_end.reshape(-1)
        adjoints = torch.zeros(1 + record.stages, len(a), dtype=self.dtype, device=self.device)
        live = self.used_by_end[: record.stages]
        if through_end:
            adjoints.addr_(self.scaled(self.end, record), a)
        if carried is not None:
            adjoints[1 + self.next_stage].add_(carried)
            live[self.next_stage] = True
        if last > first:
            self.observations.spread(record, first, last, adjoints)
            live = [True] * record.stages
        return adjoints, a, live

    def scaled(self, weights: Tensor, record: StepRecord) -> Tensor:
        """Weights of (y0, k) with those of the stages multiplied by h."""
        out = weights[..., : 1 + record.stages] * (record.t1 - record.t0)
        out[..., 0] = 1.0
        return out

    def stage_time(self, record: StepRecord, i: int) -> float:
        """When stage i was evaluated, to the last bit: just inside the step at a discontinuity."""
        c = self.method.nodes[i]
        t = record.t1 if c == 1.0 else record.t0 + c * (record.t1 - record.t0)
        nudge = record.nudge[0] if c == 0.0 else record.nudge[1] if c == 1.0 else 0
        return float(self.problem.f.time(t, nudge)) if nudge else t
