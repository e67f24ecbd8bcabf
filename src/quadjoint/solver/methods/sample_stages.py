"""The stages of implicit steps in which every sample has a length of its own, found for each sample by itself.

The equations are those of `StageSolver`; an iteration ends for each sample when its own stages are found, and a sample
whose stages are not found is lost alone. The Jacobians are those at the start of every attempt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from quadjoint.solver.methods.extrapolation import FURTHEST, extrapolation
from quadjoint.solver.methods.newton import NOISE, StageEquations
from quadjoint.solver.methods.stage_solve import Block, Memory, Solved, StageSolver
from quadjoint.solver.methods.stages import Factors, StageMatrix


@dataclass
class FoundSamples:
    """Where the iterations of the samples ended."""

    z: Tensor
    converged: Tensor  # (B,)
    contraction: Tensor  # (B,), the last one that was seen


@dataclass
class SampleSolved(Solved):
    """Stages that were found, and the samples for which they were not; those have stages of zero."""

    lost: Tensor | None = None  # (B,)
    rate: Tensor | None = None  # (B,), the worst contraction of all blocks


@dataclass(frozen=True)
class SampleStageSolver(StageSolver):
    """As `StageSolver`, for steps of each sample's own: ``start`` and ``end`` have a time for each."""

    batch = True

    def solve(self, memory: Memory) -> SampleSolved:
        memory = self._with_jacobian(memory)
        assert memory.samples is not None
        if memory.samples.rows % len(self.y):
            raise ValueError(
                "Implicit methods with independent=True solve for each sample by itself: that takes samples of up to "
                "64 numbers that do not depend on each other, and options['linear_solver'] = 'auto' or 'batched'."
            )
        memory = replace(memory, factors=(self.dt, {}))
        solved = SampleSolved(memory, lost=self.y.new_zeros(len(self.y), dtype=torch.bool))
        self._fill(solved)
        return solved

    def handed_on(self, solved: Solved) -> Memory:
        assert isinstance(solved, SampleSolved) and solved.rate is not None
        rate = solved.rate
        eta = torch.where(rate < 1.0, rate / (1.0 - rate), 1.0).clamp(min=torch.finfo(rate.dtype).eps) ** 0.8
        whole = self._whole(solved)
        previous = None if whole is None else (self.dt, whole)
        return Memory(exact=False, samples=solved.memory.samples, eta=eta.clamp(max=1.0), previous=previous)

    def _start(self, block: Block, matrix: StageMatrix, solved: Solved, h: Any) -> Tensor:
        """As for steps that are shared; each sample has a step before of its own, or none that helps."""
        plain, previous = self._from_slopes(block, matrix, solved, h), solved.memory.previous
        if previous is None or matrix.q == 1 or not block.apart:
            return plain
        before, z = previous
        assert isinstance(self.dt, Tensor) and isinstance(before, Tensor)
        ratio = torch.where(before != 0.0, self.dt / before, 0.0).reshape(-1)
        near = (ratio > 0.0) & (ratio <= FURTHEST)
        weights = extrapolation(self.tableau.c[block.first : block.last], torch.where(near, ratio, 1.0), 1.0).to(z)
        moved = torch.matmul(weights.repeat_interleave(len(z) // len(ratio), dim=0), z)
        return torch.where(_spread(near, z), moved, plain)

    def _find(
        self, equations: StageEquations, start: Tensor, solved: Solved, refresh: Callable[[Tensor], Factors]
    ) -> Tensor | None:
        assert isinstance(solved, SampleSolved) and solved.lost is not None
        factors = self._factors(solved, equations.stages, equations.h)
        found = iterate_samples(equations, start, factors, eta=solved.memory.eta, batch=len(self.y))
        solved.lost = solved.lost | ~found.converged
        solved.rate = found.contraction if solved.rate is None else torch.maximum(solved.rate, found.contraction)
        return torch.where(_spread(found.converged, found.z), found.z, 0.0)

    def slopes(self, matrix: StageMatrix, z: Tensor, h: Any) -> Tensor:
        return super().slopes(matrix, z, torch.where(h == 0.0, 1.0, h))  # samples at rest do not move


def iterate_samples(
    equations: StageEquations, z: Tensor, factors: Factors, *, eta: float | Tensor, batch: int
) -> FoundSamples:
    """As `iterate`, with one decision for each sample; the host looks once an iteration whether any goes on."""
    measure, max_iters = equations.measure, equations.max_iters
    active = torch.ones(batch, dtype=torch.bool, device=z.device)
    converged = ~active
    rate = torch.as_tensor(eta, dtype=z.dtype, device=z.device).expand(batch)
    rate = rate / (1.0 + rate)
    last = best = rate  # of changes; none before the first
    tiny = torch.finfo(z.dtype).tiny
    for n in range(1, max_iters + 1):
        dz = equations.change(z, factors)
        size = measure.rows(dz, z).reshape(batch, -1).amax(1)
        active = active & (size < math.inf)  # others are lost
        z = torch.where(_spread(active, z), z - dz, z)
        if n > 1:
            rate = torch.where(active, size / last.clamp(min=tiny), rate)
        # The change that is left, rate / (1 - rate) size, is at most one; and will it be after all iterations?
        left, allowed = rate * size, 1.0 - rate
        enough = left <= allowed
        if n > 2:
            enough = enough | ((rate > NOISE) & (size <= measure.limit) & (best > size / 10.0))
        converged = converged | (active & enough)
        active = active & ~enough
        if n > 1:
            active = active & (rate ** (max_iters - n) * left <= allowed)
        last, best = size, size if n == 1 else torch.minimum(best, size)
        if not bool(active.any()):
            break
    return FoundSamples(z, converged, rate)


def _spread(mask: Tensor, z: Tensor) -> Tensor:
    """A decision for each sample as one for its rows, to broadcast against (rows, q, d)."""
    return (mask if len(mask) == len(z) else mask.repeat_interleave(len(z) // len(mask))).reshape(-1, 1, 1)


def remaining(memory: Memory, before: Memory, slope: Tensor | None, moving: Tensor) -> Memory:
    """What the next step goes on from, if only samples that are ``moving`` have taken this one."""
    if slope is not None:
        slope = torch.where(moving, slope, torch.zeros_like(slope) if before.slope is None else before.slope)
    eta = torch.where(moving.reshape(-1), memory.eta, before.eta)
    previous = memory.previous
    if previous is not None:
        (dt, z), (old_dt, old_z) = previous, before.previous or (0.0, torch.zeros_like(previous[1]))
        previous = torch.where(moving, dt, old_dt), torch.where(_spread(moving.reshape(-1), z), z, old_z)
    return replace(memory, slope=slope, eta=eta, previous=previous)
