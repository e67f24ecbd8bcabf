"""The collocation equations of one panel, solved by products alone: any state, any coupling of samples.

With mu_i = J_i^T kappa_i they read kappa = r + h A^T mu(kappa). The iteration that is written there contracts if the
problem is not stiff; if it does not, a Krylov method takes over (GMRES; Saad and Schultz, 1986).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

ITERATIONS = 12  # of the plain iteration; it is given up earlier if it does not contract
SLOW = 0.6  # contraction beyond which a Krylov method is cheaper
KRYLOV = 40  # dimension of the Krylov space


class NotSolvedError(Exception):
    """Neither way has converged; a shorter panel may help."""


@dataclass(frozen=True)
class PanelSystem:
    """kappa = r + coupling mu(kappa), with rows for the nodes: shape (q, numbers)."""

    right: Tensor  # r
    coupling: Tensor  # h A^T, shape (q, q)
    product: Callable[[Tensor], Tensor]  # kappa to mu

    def image(self, mu: Tensor) -> Tensor:
        """r + coupling mu."""
        return torch.addmm(self.right, self.coupling, mu)


class Iteration:
    """Solves panel after panel; the contraction seen in one tells how far the next has to be iterated."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance  # relative error of mu, after the product that follows the solution
        self.contraction: float | None = None

    def solve(self, system: PanelSystem, guess: Tensor | None) -> Tensor:
        """kappa to within the tolerance; ``guess`` is one of mu."""
        kappa = system.right if guess is None else system.image(guess)
        change_before, rho = math.inf, self.contraction
        for _ in range(ITERATIONS):
            after = system.image(system.product(kappa))
            change, size = _sizes(after - kappa, after)
            kappa = after
            if not math.isfinite(change):
                raise NotSolvedError
            if change_before < math.inf:
                rho = change / change_before if change_before > 0.0 else 0.0
            # What the next application changes, and that only through one more product.
            if rho is not None and rho < 1.0 and rho * rho / (1.0 - rho) * change <= self.tolerance * size:
                self.contraction = max(rho, 1e-3)
                return kappa
            if change <= self.tolerance * size:
                self.contraction = None
                return kappa
            if change_before < math.inf and rho is not None and rho > SLOW:
                break
            change_before = change
        self.contraction = None
        return _gmres(system, kappa, self.tolerance)


def _sizes(change: Tensor, kappa: Tensor) -> tuple[float, float]:
    """Two norms by one look of the host."""
    both = torch.stack([torch.linalg.vector_norm(change), torch.linalg.vector_norm(kappa)]).tolist()
    return both[0], both[1]


def _gmres(system: PanelSystem, start: Tensor, tolerance: float) -> Tensor:
    """GMRES for kappa - coupling mu(kappa) = r, judged by the true residual."""
    shape = start.shape
    residual = system.image(system.product(start)) - start
    beta, size = _sizes(residual, system.right)
    target = tolerance * size
    if beta <= target:
        return start
    basis = [(residual / beta).reshape(-1)]
    hessenberg = np.zeros((KRYLOV + 1, KRYLOV), dtype=np.complex128 if start.is_complex() else np.float64)
    weights: np.ndarray = np.zeros(0)
    for k in range(KRYLOV):
        v = basis[-1].reshape(shape)
        w = (v - system.coupling @ system.product(v)).reshape(-1)
        directions = torch.stack(basis)
        dots = directions.conj() @ w
        w = w - dots @ directions
        again = directions.conj() @ w  # once more, as one orthogonalisation loses what is nearly parallel
        w = w - again @ directions
        column = torch.cat([dots + again, torch.linalg.vector_norm(w)[None].to(w.dtype)]).tolist()
        hessenberg[: k + 2, k] = column
        rhs = np.zeros(k + 2, dtype=hessenberg.dtype)
        rhs[0] = beta
        weights, *_ = np.linalg.lstsq(hessenberg[: k + 2, : k + 1], rhs, rcond=None)
        left = np.linalg.norm(hessenberg[: k + 2, : k + 1] @ weights - rhs)
        if not math.isfinite(left) or left <= 0.1 * target or abs(column[-1]) <= 1e-30:
            break
        basis.append(w / column[-1])
    directions = torch.stack(basis[: len(weights)])
    kappa = start + (torch.as_tensor(weights).to(start) @ directions).reshape(shape)
    change, size = _sizes(system.image(system.product(kappa)) - kappa, kappa)
    if not change <= max(target, tolerance * size):
        raise NotSolvedError
    return kappa
