"""The sweep of the discrete adjoint over implicit steps, from the last to the first.

Small samples are solved for together, many steps at a time (`StepMaps`). Of a large state each step is transposed by
itself, block by block; the linear equations of a block are those of the forward pass, transposed, at the stages found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from quadjoint.autograd.recorded import Recording
from quadjoint.gradient.base import Task
from quadjoint.gradient.cotangents import Cotangents
from quadjoint.gradient.discrete.checkpoints import StepRecord, StepRecorder
from quadjoint.gradient.discrete.step_maps import StepMaps
from quadjoint.gradient.discrete.sweep import replay
from quadjoint.gradient.discrete.transpose import StepTransposer
from quadjoint.gradient.products import Products
from quadjoint.gradient.proof import Proof
from quadjoint.solver.methods.implicit import ImplicitRungeKutta
from quadjoint.solver.methods.jacobian import SAMPLE, Samples, row_jacobians, row_products, splits
from quadjoint.solver.methods.recorded_stages import StageSystem
from quadjoint.solver.methods.stages import StageMatrix

SMALL = 24  # numbers in a sample up to which many steps are solved for together
CHUNK_BYTES = 2**24  # of activations and maps, for steps solved for together


class ImplicitSweep:
    """The adjoint ``a`` from step to step, and ``carried``, that of the stage that two steps share; both flat."""

    def __init__(
        self, task: Task, cotangents: Cotangents, products: Products, *, activation_bytes: int, most: int | None
    ) -> None:
        self.chunk = CHUNK_BYTES if most is None else min(most, CHUNK_BYTES)
        self.task, self.cotangents, self.products = task, cotangents, products
        self.transposer = StepTransposer(task, cotangents)
        stepper = task.spec.solver.eager
        assert isinstance(stepper, ImplicitRungeKutta)
        self.method, self.tableau = stepper, stepper.tableau
        self.a = self.transposer.zero()
        self.carried: Tensor | None = None
        self.activation_bytes = activation_bytes
        self.splits: list[Samples] = []

    def run(self, memory: StepRecorder) -> Tensor:
        """dL/dy at the start, without the observations there."""
        proof = Proof(self.task)
        pending: list[StepRecord] = []
        for record, _ in memory.backwards(partial(replay, self.task), proof):
            if self.transposer.needs_extension(record):
                record = replace(record, stages=self.transposer.total)
                record.inputs = replay(self.task, record, record.begin()).inputs
            if not self.splits:
                self.splits = list(splits(record.begin(), batch=record.clock is not None))
            if pending and not self._belongs(record, pending):
                self._together(pending)
                pending = []
            pending.append(record)
        if pending:
            self._together(pending)
        proof.conclude()
        return self.a.view(self.task.f.shape)

    def _belongs(self, record: StepRecord, pending: list[StepRecord]) -> bool:
        """Whether a step can be solved for together with the later ones that wait."""
        alike = record.stages == pending[0].stages and record.shared == pending[0].shared
        return alike and len(pending) < self._most(record)

    def _most(self, record: StepRecord) -> int:
        """How many steps are solved for at once."""
        samples, n = self.splits[0], record.stages
        maps = 4 * n * samples.rows * samples.d * (2 * samples.d + 1) * self.a.element_size()
        return max(1, self.chunk // max(1, maps + n * self.activation_bytes))

    def _together(self, records: list[StepRecord]) -> None:
        while self.splits[0].d <= SMALL:
            if self._solve(records, self.splits[0]):
                return
            if len(self.splits) == 1:
                break
            self.splits.pop(0)  # rows influence each other: larger samples, or all rows as one
        for record in records:
            self._single(record)

    def _observed(self, record: StepRecord) -> Tensor:
        """What observations add: h b_i(s_k) g_k to lambda_i, and g_k to a0; shape (stages + 1, numbers)."""
        first, last = self.cotangents.range_in_step(record.index)
        out = self.a.new_zeros(record.stages + 1, len(self.a))
        if last > first:
            s = np.clip((self.cotangents.times[first:last] - record.t0) / (record.t1 - record.t0), 0.0, 1.0)
            dense = self.tableau.dense_weights(s)[:, : record.stages]
            self.cotangents.spread(first, last, np.hstack([dense, np.ones((last - first, 1))]), out)
            out[:-1] *= self._lengths(record)
        return out

    def _lengths(self, record: StepRecord) -> Tensor:
        """The length of the step, or those of the samples' own for every number of the state: (1,) or (numbers,)."""
        if record.lengths is None:
            return self.a.new_full((1,), record.t1 - record.t0, dtype=self.a.dtype.to_real())
        return record.lengths.to(self.a.dtype.to_real()).expand(self.task.f.shape).reshape(-1)

    # Many steps at once -----------------------------------------------------------------------------------------------

    def _solve(self, records: list[StepRecord], samples: Samples) -> bool:
        """Sweep steps as small linear maps; False if rows are not independent, and nothing has happened."""
        steps, n = len(records), records[0].stages
        first = int(records[0].shared)
        own = range(first, n)
        times = self._times(records, own)
        ys = torch.stack([record.stage_inputs()[i] for record in records for i in own]).requires_grad_()
        out = self.products.record_stack(times, ys)
        rows, d = samples.rows, samples.d
        stack = Samples.of(ys, d)
        jacobian, _ = row_jacobians(row_products(Recording(out, ys), stack), stack, ys, probed=False)
        self.task.stats.vjp_state += d * len(ys)
        points = (steps, len(own), rows, d)
        jacobian = jacobian.reshape(*points, d)
        observed = torch.stack([samples.rows_of(x.view(samples.shape)) for r in records for x in self._observed(r)])
        lengths = torch.stack([self._lengths(r) for r in records]).to(jacobian)
        if lengths.shape[1] > 1:
            lengths = lengths.reshape(steps, rows, -1)[..., :1]  # the same for all numbers of a sample
        lengths = lengths.reshape(steps, -1, 1, 1)
        maps = StepMaps(self.tableau, lengths, jacobian, observed.reshape(steps, n + 1, rows, d))
        a, carried = (
            torch.zeros_like(observed[0]) if x is None else samples.rows_of(x.view(samples.shape))
            for x in (self.a, self.carried)
        )
        ends, a, carried = maps.chain(a, carried)
        lam, mu = maps.stages(ends)
        true, gradients = self._joint(out, ys, stack.state_of(lam))
        if not bool(maps.agree(mu, stack.rows_of(true).reshape(points), ends)):
            return False
        self.products.add(gradients)
        self.a = samples.state_of(a).reshape(-1)
        self.carried = samples.state_of(carried).reshape(-1) if first else None
        return True

    def _times(self, records: list[StepRecord], stages: range) -> Sequence[float] | Tensor:
        """When the stages were evaluated; for samples with steps of their own as a tensor, (times, B, 1, ...)."""
        times = [self.transposer.stage_time(record, i) for record in records for i in stages]
        tensors = [t for t in times if isinstance(t, Tensor)]
        return torch.stack(tensors) if tensors else [float(t) for t in times]

    def _joint(self, out: Tensor, ys: Tensor, lam: Tensor) -> tuple[Tensor, Sequence[Tensor | None]]:
        """mu, and the parameters' gradient."""
        targets = self.products.targets
        if not out.requires_grad:
            return torch.zeros_like(ys), [None] * len(targets)
        self.task.stats.vjp_state += len(ys)
        self.task.stats.vjp_params += bool(targets)
        found: Sequence[Tensor | None]
        mu, *found = torch.autograd.grad(out, (ys, *targets), lam, retain_graph=True, allow_unused=True)
        return torch.zeros_like(ys) if mu is None else mu, found

    # One step ---------------------------------------------------------------------------------------------------------

    def _single(self, record: StepRecord) -> None:
        n, h = record.stages, self._lengths(record)
        lam = self._observed(record)
        b = np.append(self.tableau.b, np.zeros(self.tableau.extra_stages))[:n]
        lam[:n].addr_(torch.as_tensor(b).to(lam), self.a * h)
        lam[n].add_(self.a)
        if self.carried is not None:  # of samples at rest the adjoint of their first stage
            lam[self.tableau.stages - 1].add_(torch.where(h != 0.0, self.carried, 0.0))
            lam[0].add_(torch.where(h != 0.0, 0.0, self.carried))
        blocks = [(x.first, x.last, x.matrix) for x in self.method.blocks]
        blocks += [(i, i + 1, None) for i in range(self.tableau.stages, n)]
        for first, last, matrix in reversed(blocks):
            if last == 1 and record.shared:
                break
            self._transpose(record, lam, range(first, last), matrix, h)
        self.a, self.carried = lam[n], lam[0] if record.shared else None

    def _transpose(self, record: StepRecord, lam: Tensor, stages: range, matrix: StageMatrix | None, h: Tensor) -> None:
        """The stages of one block: their lambdas, what these add to earlier ones and to a0, and the parameters'."""
        inputs, shape = record.stage_inputs(), self.task.f.shape
        recordings = [self.products.record(self.transposer.stage_time(record, i), inputs[i]) for i in stages]
        if matrix is not None:
            samples = next((x for x in self.splits if x.d <= SAMPLE), self.splits[-1])
            ys, fs = [x.y for x in recordings], [x.out for x in recordings]
            given = torch.stack([samples.rows_of(lam[i].view(shape)) for i in stages], dim=1)
            g = torch.matmul(matrix.constant("inverse", given).mT, given)
            length = record.t1 - record.t0 if record.lengths is None else samples.spread(record.lengths)
            x = StageSystem(samples, matrix, length, ys, fs).solve_transposed(g)
            found = torch.matmul(matrix.constant("a", x).mT, x)
            for k, i in enumerate(stages):
                lam[i] = samples.state_of(found[:, k]).reshape(-1)
        a = self.tableau.all_stages
        for i, recording in zip(stages, recordings, strict=True):
            mu = self.products.transpose(recording.out, recording.y, lam[i].view(shape)).reshape(-1)
            weights = np.where(np.arange(record.stages) < stages[0], a[i, : record.stages], 0.0)
            lam[:-1].addr_(torch.as_tensor(weights).to(lam), mu * h)
            lam[-1].add_(mu)
