"""Implicit stages that autograd can differentiate: not through the iteration, but by the equations that it has solved.

With F(z) = h A f(t, base + z) and z = F(z), the implicit function theorem gives dz = (I - dF/dz)^-1 dF. So F is
recorded once, at the z that was found, and its derivative is multiplied by that inverse, transposed in the backward
pass. z is then right to first order; the same again, recorded at that z, makes it right to second order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quadjoint.autograd.recorded import Recording
from quadjoint.errors import SolveError
from quadjoint.solver.krylov import gmres
from quadjoint.solver.methods.jacobian import SAMPLE, WHOLE, ProductJacobian, Samples, row_jacobians, row_products
from quadjoint.solver.methods.stages import StageMatrix

SPACES = 10  # restarts of the Krylov method
DIMENSION = 60


class StageSystem:
    """I - h A (x) J with the Jacobians of f recorded at ``ys``, solved to rounding, also transposed.

    Tensors of unknowns have the shape (rows, q, d).
    """

    def __init__(
        self,
        samples: Samples,
        matrix: StageMatrix,
        h: Any,
        ys: Sequence[Tensor],
        fs: Sequence[Tensor],
        *,
        twice: bool = False,
    ) -> None:
        self.samples, self.matrix, self.h, self.ys, self.fs, self.twice = samples, matrix, h, ys, fs, twice
        self.factors: tuple[Tensor, Tensor] | None = None
        self.tried = False

    def products(self, i: int, a: Tensor) -> Tensor:
        """a^T df/dy at stage i for a stack of a: shape (m, rows, d)."""
        return row_products(Recording(self.fs[i], self.ys[i]), self.samples)(a)

    def transposed(self, x: Tensor) -> Tensor:
        """The transposed matrix times x, by true products."""
        a = torch.matmul(self.matrix.constant("a", x).mT, x * self.h)
        return x - torch.stack([self.products(i, a[None, :, i])[0] for i in range(self.matrix.q)], dim=1)

    def solve_transposed(self, g: Tensor) -> Tensor:
        size = float(torch.linalg.vector_norm(g))
        if size == 0.0 or not math.isfinite(size):
            return g * size
        factors = self._factors()
        eps = torch.finfo(g.dtype).eps
        if factors is not None and self.independent:
            return _lu_solve(factors, g, adjoint=True)
        precondition = None if factors is None else lambda x: _lu_solve(factors, x, adjoint=True)
        found = gmres(
            self.transposed, g, target=10 * eps * size, dimension=DIMENSION, restarts=SPACES, precondition=precondition
        )
        return self._checked(found.x, found.residual, size, eps)

    def solve(self, r: Tensor) -> Tensor:
        """As needed for second derivatives."""
        size = float(torch.linalg.vector_norm(r))
        if size == 0.0 or not math.isfinite(size):
            return r * size
        factors = self._factors()
        eps = torch.finfo(r.dtype).eps
        if factors is not None and self.independent:
            return _lu_solve(factors, r, adjoint=False)
        jacobians = [ProductJacobian(Recording(*self._real(i))) for i in range(self.matrix.q)]

        def apply(z: Tensor) -> Tensor:
            moved = torch.stack([jacobian(z[:, i]) for i, jacobian in enumerate(jacobians)], dim=1)
            return z - torch.matmul(self.matrix.constant("a", z), moved) * self.h

        precondition = None if factors is None else lambda x: _lu_solve(factors, x, adjoint=False)
        found = gmres(apply, r, target=10 * eps * size, dimension=DIMENSION, restarts=SPACES, precondition=precondition)
        return self._checked(found.x, found.residual, size, eps)

    def _real(self, i: int) -> tuple[Tensor, Tensor]:
        if self.samples.complex:
            raise SolveError("Second derivatives of implicit steps of a large complex state are not available.")
        return self.fs[i], self.ys[i]

    @staticmethod
    def _checked(x: Tensor, residual: float, size: float, eps: float) -> Tensor:
        if not residual <= max(1e-9, 1e3 * eps) * size:
            raise SolveError(
                "The transposed equations of an implicit step could not be solved by products: they are left with a "
                f"relative residual of {residual / size:.1e}. Use gradient='gq', or options={{'linear_solver': "
                "'dense'}."
            )
        return x

    def _factors(self) -> tuple[Tensor, Tensor] | None:
        """Factors of the whole matrix of every sample, and whether samples are independent; None for large ones."""
        samples, q = self.samples, self.matrix.q
        if not self.tried and samples.d <= (WHOLE if samples.rows == 1 else SAMPLE):
            jacobians, self.independent = self._jacobians()
            h = self.h.mT if isinstance(self.h, Tensor) else self.h
            a = self.matrix.constant("a", jacobians[0])
            blocks = torch.einsum("ij,jrkl->rikjl", a, torch.stack(jacobians))
            scaled = blocks.reshape(samples.rows, q, samples.d, -1) * (h[:, None] if isinstance(h, Tensor) else h)
            size = q * samples.d
            eye = torch.eye(size, dtype=a.dtype, device=a.device)
            factors, pivots, _ = torch.linalg.lu_factor_ex(eye - scaled.reshape(samples.rows, size, size))
            self.factors = factors, pivots
        self.tried = True
        return self.factors

    def _jacobians(self) -> tuple[list[Tensor], bool]:
        """Of every stage, and whether rows are independent, up to rounding."""
        found = [row_jacobians(partial(self.products, i), self.samples, self.ys[i]) for i in range(self.matrix.q)]
        coupling = torch.stack([x for _, x in found]).amax()
        eps = torch.finfo(coupling.dtype).eps
        return [x for x, _ in found], self.samples.rows == 1 or bool(coupling <= 1e3 * eps * self.samples.d)


def _lu_solve(factors: tuple[Tensor, Tensor], r: Tensor, *, adjoint: bool) -> Tensor:
    lu, pivots = factors
    return torch.linalg.lu_solve(lu, pivots, r.reshape(len(r), -1, 1), adjoint=adjoint).reshape(r.shape)


class _Correct(torch.autograd.Function):
    """Zero, with the derivative (I - dF/dz)^-1."""

    @staticmethod
    def forward(ctx: Any, system: StageSystem, r: Tensor) -> Tensor:
        ctx.system = system
        return torch.zeros_like(r)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        if torch.is_grad_enabled() and not ctx.system.twice:
            raise ValueError(
                "These implicit steps were recorded for a first derivative, and a second one was asked for "
                "(create_graph=True). Use gradient='discrete' or 'gq', which record them again for that."
            )
        return None, _Transposed.apply(ctx.system, grads[0])


class _Transposed(torch.autograd.Function):
    """The solution of the transposed equations, which is linear in the right-hand side."""

    @staticmethod
    def forward(ctx: Any, system: StageSystem, g: Tensor) -> Tensor:
        ctx.system = system
        return system.solve_transposed(g)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        if torch.is_grad_enabled():
            raise ValueError("Implicit steps have first and second derivatives; a third one was asked for.")
        return None, ctx.system.solve(grads[0])


def correct(system: StageSystem, r: Tensor) -> Tensor:
    """Zeros that differentiate as (I - dF/dz)^-1 r."""
    return _Correct.apply(system, r)
