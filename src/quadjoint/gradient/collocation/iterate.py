"""The collocation equations of one panel, solved by products alone: any state, any coupling of samples.

With mu_i = J_i^T kappa_i they read kappa = r + h A^T mu(kappa). The iteration that is written there contracts if the
problem is not stiff; if it does not, a Krylov method takes over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quadjoint.solver.krylov import gmres

ITERATIONS = 12  # of the plain iteration; it is given up earlier if it does not contract
SLOW = 0.6  # contraction beyond which a Krylov method is cheaper
LEAST = 1e-3  # contraction that is expected


class NotSolvedError(Exception):
    """Neither way has converged; a shorter panel may help."""


Products = tuple[Tensor, Sequence[Tensor | None]]  # mu, and the gradients of the parameters


@dataclass(frozen=True)
class PanelSystem:
    """kappa = r + coupling mu(kappa), with rows for the nodes: shape (q, numbers)."""

    right: Tensor  # r
    coupling: Tensor  # h A^T, shape (q, q)
    length: float  # |h|
    product: Callable[[Tensor], Tensor]  # kappa to mu
    joint: Callable[[Tensor], Products]  # kappa to mu and the gradients of the parameters

    def image(self, mu: Tensor) -> Tensor:
        """r + coupling mu."""
        return torch.addmm(self.right, self.coupling, mu)


class Iteration:
    """Solves panel after panel.

    The contraction seen in one panel, in proportion to the length, foretells which product of the next will be the
    last, and is taken with that in the parameters. Whether it was the last is judged by what is seen in the panel
    itself: that product also gives what one more application would change.
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance  # relative error of mu
        self.rate = math.inf  # contraction in a panel of length one

    def solve(self, system: PanelSystem, guess: Tensor | None) -> Products:
        """mu to within the tolerance, and the gradients of the parameters; ``guess`` is one of mu."""
        kappa = system.right if guess is None else system.image(guess)
        before, rho = math.inf, self.rate * system.length
        final = False
        for _ in range(ITERATIONS):
            mu, gradients = system.joint(kappa) if final else (system.product(kappa), ())
            after = system.image(mu)
            change, size = _sizes(after - kappa, after)
            if not math.isfinite(change):
                raise NotSolvedError
            if before < math.inf:
                rho = change / before if before > 0.0 else 0.0
            later = rho / (1.0 - rho) * change if rho < 1.0 else math.inf  # all that ``after`` lacks, and so mu
            allowed = self.tolerance * size
            if final and min(change, later) <= allowed:
                self.rate = max(rho, LEAST) / (system.length or 1.0)
                return mu, gradients
            final = min(change, rho * later) <= allowed
            if not final and before < math.inf and rho > SLOW:
                break
            kappa, before = after, change
        self.rate = math.inf
        return system.joint(_krylov(system, after, self.tolerance))


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
