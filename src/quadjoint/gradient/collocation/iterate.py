"""The collocation equations of one panel, solved by products alone: any state, any coupling of samples.

With mu_i = J_i^T kappa_i they read kappa = r + h A^T mu(kappa). The iteration that is written there contracts if the
problem is not stiff; if it does not, a Krylov method takes over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from quadjoint.solver.krylov import gmres

ITERATIONS = 12  # of the plain iteration; it is given up earlier if it does not contract
SLOW = 0.6  # contraction beyond which a Krylov method is cheaper


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
        return _krylov(system, kappa, self.tolerance)


def _sizes(change: Tensor, kappa: Tensor) -> tuple[float, float]:
    """Two norms by one look of the host."""
    both = torch.stack([torch.linalg.vector_norm(change), torch.linalg.vector_norm(kappa)]).tolist()
    return both[0], both[1]


def _krylov(system: PanelSystem, start: Tensor, tolerance: float) -> Tensor:
    """GMRES for kappa - coupling mu(kappa) = r, judged by the true residual."""
    _, size = _sizes(system.right, system.right)
    found = gmres(
        lambda kappa: kappa - system.coupling @ system.product(kappa), system.right, start, target=tolerance * size
    )
    if not found.residual <= tolerance * max(size, _sizes(found.x, found.x)[0]):
        raise NotSolvedError
    return found.x
