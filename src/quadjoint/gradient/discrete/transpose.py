"""Transposed Runge-Kutta steps.

The adjoints of one step lie in one matrix, row 0 for dL/dy0 and row 1 + i for dL/dk_i; each transposed operation of
the step is then a single product or rank-one update of that matrix.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quadjoint.gradient.base import Task
from quadjoint.gradient.cotangents import Cotangents
from quadjoint.gradient.discrete.checkpoints import StepRecord
from quadjoint.solver.methods.runge_kutta import RungeKutta
from quadjoint.solver.methods.sums import stage_nudge, stage_time
from quadjoint.solver.protocols import Time


class StepTransposer:
    """Opens a step's matrix of adjoints; its stages are then transposed one by one."""

    def __init__(self, task: Task, cotangents: Cotangents) -> None:
        self.task, self.cotangents = task, cotangents
        method = task.spec.solver.stepper
        assert isinstance(method, RungeKutta)
        self.method = method
        tableau = self.method.tableau
        self.total = total = tableau.stages + tableau.extra_stages
        self.dtype, self.device = cotangents.grads.dtype, cotangents.grads.device
        # Row i: how stage input Y_i depends on (y0, k_0, ..., k_{i-1}), in units of h; then the end of the step.
        rows = np.zeros((total + 1, 1 + total))
        rows[:, 0] = 1.0
        for i, entries in enumerate((*self.method.rows, self.method.weights)):
            for j, w in entries:
                rows[i, 1 + j] = w
        self.rows = torch.as_tensor(rows, dtype=self.dtype, device=self.device)
        self.used_by_end = [False] * total
        for j, _ in self.method.weights:
            self.used_by_end[j] = True
        self.next_stage = self.method.stages - 1 if self.method.fsal else self.method.stages

    def zero(self) -> Tensor:
        """The adjoint behind the last step."""
        return torch.zeros(self.task.f.shape.numel(), dtype=self.dtype, device=self.device)

    def needs_extension(self, record: StepRecord) -> bool:
        """Whether states inside the step were asked for that the forward solve had not evaluated its stages for."""
        first, last = self.cotangents.range_in_step(record.index)
        inside = last > first and self.cotangents.times[first] != record.t1
        return record.stages < self.total and inside

    def open(self, record: StepRecord, a: Tensor, carried: Tensor | None) -> tuple[Tensor, Tensor, list[bool]]:
        """Adjoints of a step before its own stages are transposed, its weights in h, and which stages matter so far.

        Adjoints of the samples' own steps are those of h k_i, in units of which such a step has h = 1.
        """
        first, _ = self.cotangents.range_in_step(record.index)
        last, a = self.cotangents.at_end(record.index, a)
        h = record.t1 - record.t0
        weights = self.rows[:, : 1 + record.stages] * h
        weights[:, 0] = 1.0
        adjoints = torch.zeros(1 + record.stages, len(a), dtype=self.dtype, device=self.device)
        live = self.used_by_end[: record.stages]
        if carried is not None:
            live[self.next_stage] = True
            if record.clock is None:
                adjoints[1 + self.next_stage].add_(carried)
            else:
                live[0] = True
        adjoints.addr_(weights[-1], a)
        if last > first:
            theta = (self.cotangents.times[first:last] - record.t0) / h
            dense = self.method.tableau.dense_weights(theta) * h
            self.cotangents.spread(first, last, np.hstack([np.ones((last - first, 1)), dense]), adjoints)
            live = [True] * record.stages
        return adjoints, weights, live

    def stage_adjoint(self, record: StepRecord, i: int, adjoints: Tensor, carried: Tensor | None) -> Tensor:
        """dL/dk_i, of the shape of the state.

        ``carried`` is that of the first stage of the next step: of samples that have moved the last stage of this one,
        of samples at rest its first.
        """
        lam, lengths = adjoints[1 + i].view(self.task.f.shape), record.lengths
        if lengths is None:
            return lam
        lam = lam * lengths.to(self.dtype.to_real())
        if carried is None or i not in (0, self.next_stage):
            return lam
        moved = lengths != 0.0
        return lam + torch.where(moved if i == self.next_stage else ~moved, carried.view(lam.shape), 0.0)

    def stage_time(self, record: StepRecord, i: int) -> Time:
        """When stage i was evaluated, to the last bit: just inside the step at a discontinuity."""
        c, nudge = self.method.nodes[i], stage_nudge(self.method.nodes[i], record.nudge)
        if record.clock is not None:
            return stage_time(c, record.clock, record.clock[1] - record.clock[0])
        t = stage_time(c, (record.t0, record.t1), record.t1 - record.t0)
        return float(self.task.f.time(t, nudge)) if nudge else float(t)
