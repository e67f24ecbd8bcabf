"""The Jacobian of the backward state [z, a, a_theta], for implicit methods that solve it.

It is block triangular: [[J, 0, 0], [-d(a^T J)/dz, -J^T, 0], [.., .., 0]]. Newton's iteration with the diagonal blocks
alone converges as well: what it leaves out moves one block further with every iteration, and there are three.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quadjoint.autograd.recorded import Recording
from quadjoint.solver.methods.jacobian import (
    Jacobian,
    JacobianSource,
    ProductJacobian,
    RowJacobian,
    Samples,
    linearize,
    row_products,
)
from quadjoint.solver.methods.stages import Factors, StageMatrix
from quadjoint.solver.protocols import Time, VectorField


class _Transposed(ProductJacobian):
    """v to -J^T v."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.solver = recording, None
        self.samples = Samples.of(recording.y)

    def __call__(self, v: Tensor) -> Tensor:
        return -row_products(self.recording, self.samples)(v.reshape(1, 1, -1)).reshape(v.shape)


class AugmentedJacobian:
    """The diagonal blocks at a time and a state z."""

    def __init__(self, f: VectorField, t: Time, z: Tensor, nudge: int) -> None:
        self.samples, self.z = JacobianSource().first(f, t, z, nudge)
        self.a: Jacobian
        if isinstance(self.z, RowJacobian):
            self.a = RowJacobian(-self.z.matrix.mT)
        else:
            self.a = _Transposed(linearize(f, t, z, nudge))

    def factorize(self, stages: StageMatrix, h: Any) -> _AugmentedFactors:
        return _AugmentedFactors(self.samples, self.z.factorize(stages, h), self.a.factorize(stages, h))


class _AugmentedFactors:
    def __init__(self, samples: Samples, z: Factors, a: Factors) -> None:
        self.samples, self.z, self.a = samples, z, a

    def solve(self, r: Tensor) -> Tensor:
        """For r of shape (1, q, numbers)."""
        rows, d, q = self.samples.rows, self.samples.d, r.shape[1]
        n = rows * d
        parts = []
        for block, factors in enumerate((self.z, self.a)):
            own = r[0, :, block * n : (block + 1) * n].reshape(q, rows, d).transpose(0, 1)
            parts.append(factors.solve(own).transpose(0, 1).reshape(1, q, n))
        return torch.cat([*parts, r[:, :, 2 * n :]], dim=2)
