"""Simplified Newton iteration for the stages of an implicit step.

The stages of a block satisfy z = h A f(t, base + z). With one Jacobian J for all of them,

    (I - h A (x) J) dz = h A f(t, base + z) - z,   z <- z + dz,

until what is left, dz theta / (1 - theta) for a contraction by theta, is small beside the tolerance of the solve
(Hairer and Wanner, section IV.8). On a fixed grid there is no tolerance, and z is found to rounding: that of the states
that the step passes through. A state that settles at zero is the exception. There f may be a difference of numbers of
order one, and its rounding larger than the state; changes that do not get any smaller then count as rounding if they
are below atol and below 1024 units in the last place of one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quadjoint.solver.methods.jacobian import JacobianSource, Samples
from quadjoint.solver.methods.stages import Factors, StageMatrix

SLOW = 0.3  # contraction beyond which the Jacobian of a given step is evaluated again within it
NOISE = 0.5  # contraction beyond which changes near the tolerance are taken for rounding
NEGLIGIBLE = 1024.0  # units in the last place of one, up to which changes on a fixed grid may be the rounding of f


@dataclass(frozen=True)
class NewtonSettings:
    """Tolerances of the solve, and how its linear equations are solved.

    On a fixed grid ``rtol`` is None, and ``atol`` only bounds what may be taken for the rounding of f.
    """

    rtol: float | Tensor | None = None
    atol: float | Tensor | None = None
    max_iters: int = 10
    jacobians: JacobianSource = field(default_factory=JacobianSource)

    @property
    def tight(self) -> bool:
        """Whether stages are found to rounding."""
        return self.rtol is None or self.atol is None

    @property
    def kappa(self) -> float:
        """The part of the tolerance that the iteration may leave."""
        rtol = 0.0 if self.rtol is None else float(self.rtol.min()) if isinstance(self.rtol, Tensor) else self.rtol
        return max(min(0.03, math.sqrt(rtol)), 1e-4)

    def slack(self, eps: float) -> tuple[float, float]:
        """Relative and absolute difference of two solutions of the same equations, with room.

        Iterations that begin elsewhere end elsewhere: where they stop is judged by an estimate of the contraction.
        """
        if self.rtol is None or self.atol is None:
            rounding = self.negligible(eps)
            return 4.0 * eps**0.5, 10.0 * (float(rounding.max()) if isinstance(rounding, Tensor) else rounding)
        rtol, atol = (float(x.max()) if isinstance(x, Tensor) else x for x in (self.rtol, self.atol))
        return 100.0 * self.kappa * rtol, 100.0 * self.kappa * atol

    def negligible(self, eps: float) -> float | Tensor:
        """Changes of stages on a fixed grid that may be nothing but the rounding of f, however small the state is."""
        if self.atol is None:
            return 0.0
        most = NEGLIGIBLE * eps
        return self.atol.clamp(max=most) if isinstance(self.atol, Tensor) else min(self.atol, most)


class Yardstick:
    """Measures changes of stages, of every row by itself: at most one is small enough."""

    def __init__(self, settings: NewtonSettings, samples: Samples, y: Tensor) -> None:
        self.tight = settings.tight
        eps = torch.finfo(y.dtype).eps
        self.rounding = 4.0 * eps
        self.size = samples.rows_of(y)[:, None].abs()  # (rows, 1, d)
        # Where the iteration does not get any further, so much is accepted as rounding.
        self.limit = eps**-0.5 if self.tight else max(1.0, 0.03 / settings.kappa)
        self.negligible = samples.spread(settings.negligible(eps)) if self.tight else 0.0
        if settings.rtol is not None and settings.atol is not None:
            unit = samples.spread(y.abs() * settings.rtol + settings.atol) * settings.kappa
            self.unit = torch.add(unit, self.size, alpha=self.rounding)

    def around(self, bases: list[Tensor]) -> Yardstick:
        """For stages that begin at ``bases`` of shape (rows, d), whose rounding is theirs too."""
        if not self.tight:
            return self
        out = copy.copy(self)
        out.size = torch.maximum(self.size, torch.stack(bases, dim=1).abs())
        return out

    def rows(self, dz: Tensor, z: Tensor) -> Tensor:
        """The sizes of the change ``dz`` of stages ``z``, shape (rows,)."""
        if self.tight:
            change = dz.abs()
            # From a state of zero, the first change says how large the stages are.
            size = torch.maximum(torch.maximum(self.size, z.abs()), change)
            # Components that are much smaller than others of the sample are not found to their last bit.
            size = size.add_(size.amax(dim=(1, 2), keepdim=True), alpha=1e-3).add_(torch.finfo(z.dtype).tiny)
            return (change / size).amax(dim=(1, 2)) / self.rounding
        return torch.linalg.vector_norm(dz / self.unit, dim=(1, 2)) / math.sqrt(dz.shape[1] * dz.shape[2])

    def may_be_rounding(self, dz: Tensor) -> Tensor:
        """Of every row, whether the change is so small that f may not resolve it."""
        return (dz.abs() <= self.negligible).flatten(1).all(dim=1)


@dataclass
class Found:
    """Where an iteration ended."""

    z: Tensor
    converged: bool
    iterations: int
    size: float  # of the last change, in units of what is small enough
    contraction: float  # the last one that was seen


@dataclass(frozen=True)
class StageEquations:
    """z = h A f(t, base + z) for the stages of a block, and how well it is to be solved."""

    evaluate: Callable[[Tensor], Tensor]  # z to f at the stages
    stages: StageMatrix
    h: Any
    measure: Yardstick
    max_iters: int

    def change(self, z: Tensor, factors: Factors) -> Tensor:
        """What Newton's iteration subtracts from ``z``."""
        return factors.solve(residual(self.stages, self.h, self.evaluate(z), z))


def iterate(
    equations: StageEquations,
    z: Tensor,
    factors: Factors,
    *,
    eta: float,
    refresh: Callable[[Tensor], Factors] | None = None,
) -> Found:
    """Iterate until all rows are found; ``eta`` is what theta / (1 - theta) is expected to be, before it is seen.

    ``refresh`` makes factors with the Jacobian at the stages found so far, for steps that cannot be shortened.
    """
    measure, max_iters = equations.measure, equations.max_iters
    rate, last, best = math.inf, math.inf, math.inf
    sizes: Tensor | None = None
    resting: Tensor | None = None  # rows whose changes are the rounding of f alone
    for n in range(1, max_iters + 1):
        dz = equations.change(z, factors)
        before, sizes = sizes, measure.rows(dz, z)
        if resting is not None:
            sizes = sizes.masked_fill(resting, 0.0)
        size = float(sizes.amax())
        if not math.isfinite(size):
            return Found(z, False, n, size, math.inf)
        z = z - dz
        if n > 1:
            rate = size / last if last > 0.0 else 0.0
            eta = rate / (1.0 - rate) if rate < 1.0 else math.inf
        if eta * size <= 1.0 or size == 0.0:
            return Found(z, True, n, size, rate if n > 1 else eta / (1.0 + eta))
        if n > 2 and rate > NOISE:
            if size <= measure.limit and best > size / 10.0:
                return Found(z, True, n, size, rate)
            if measure.tight and before is not None:
                found = measure.may_be_rounding(dz) & (sizes > NOISE * before)
                resting = found if resting is None else resting | found
                sizes = sizes.masked_fill(resting, 0.0)
                size = float(sizes.amax())
                if size == 0.0:
                    return Found(z, True, n, size, rate)
        if refresh is not None:
            if rate > SLOW and n > 1:
                factors = refresh(z)
        elif n > 1 and (rate >= 1.0 or rate ** (max_iters - n) * eta * size > 1.0):
            break
        last, best = size, min(best, size)
    return Found(z, False, n, size, rate)


def residual(stages: StageMatrix, h: Any, f: Tensor, z: Tensor) -> Tensor:
    """z - h A f for tensors of shape (rows, q, d)."""
    if stages.q == 1:
        a = float(stages.a[0, 0])
        return torch.addcmul(z, f, h, value=-a) if isinstance(h, Tensor) else torch.sub(z, f, alpha=h * a)
    if isinstance(h, Tensor):
        return z - torch.matmul(stages.constant("a", z), f * h)
    return torch.sub(z, torch.matmul(stages.constant("a", z), f), alpha=h)
