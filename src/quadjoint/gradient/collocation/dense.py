"""The collocation equations of many panels at once, if samples are small and do not influence each other.

d products on one recorded stack give the d x d Jacobians of every node and sample. Each panel is then a linear map of
the adjoint, found by one batched factorisation; the adjoints follow from a chain of tiny products. No evaluation of f
is sequential. One more product of the stack, with the kappas found, gives the parameters' gradient and, without the
assumption, every mu: if they agree with those of the small systems, the equations are solved, whatever f is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from quadjoint.gradient.collocation.rule import CollocationRule


def jacobians(product: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    """d out[..., j] / d y[..., i] of every node and sample by d products, shape (*points, d) with indices (j, i)."""
    rows = []
    for j in range(points.shape[-1]):
        unit = torch.zeros_like(points, requires_grad=False)
        unit[..., j] = 1.0
        rows.append(product(unit))
    return torch.stack(rows, dim=-2)


class PanelMaps:
    """Panels n = 0 .. P-1 (last in time first) as maps a1 -> kappa and a1 -> a0 for each sample."""

    def __init__(self, rule: CollocationRule, lengths: np.ndarray, jacobian: Tensor, right: Tensor) -> None:
        """``jacobian`` has shape (P, q, B, d, d); ``right``, from the observations, (P, q, B, d)."""
        p, q, b, d, _ = jacobian.shape
        self.jacobian = jacobian
        identity = torch.eye(q * d, dtype=jacobian.dtype, device=jacobian.device)
        coupling = torch.as_tensor(lengths[:, None, None] * rule.a.T).to(jacobian)  # (P, j, i): h a_ij
        # kappa_j - h sum_i a_ij J_i^T kappa_i = right_j; unknowns (j, row) and (i, column).
        blocks = torch.einsum("pji,pibkl->pbjlik", coupling, jacobian)
        matrix = identity - blocks.reshape(p, b, q * d, q * d)
        weights = torch.as_tensor(lengths[:, None] * rule.b).to(jacobian)  # (P, j)
        unit = torch.einsum("pj,lm->pjlm", weights, identity[:d, :d]).reshape(p, 1, q * d, d)
        given = right.permute(0, 2, 1, 3).reshape(p, b, q * d, 1)
        solved = torch.linalg.solve(matrix, torch.cat([unit.expand(p, b, q * d, d), given], dim=-1))
        self.solved = solved.reshape(p, b, q, d, d + 1)
        # mu_i = J_i^T kappa_i for the unit adjoints and for the observations
        moved = torch.einsum("pibkl,pbikm->pblm", jacobian, self.solved)
        self.step = moved[..., :d] + identity[:d, :d]
        self.shift = moved[..., d]

    def chain(self, a: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Adjoints at the ends of the panels, (P, B, d), and at the start of the last one in the list.

        ``observed`` are the sums of the observations' gradients in each panel, (P, B, d).
        """
        ends = []
        shifts = self.shift + observed
        for step, shift in zip(self.step.unbind(), shifts.unbind(), strict=True):
            ends.append(a)
            a = torch.baddbmm(shift.unsqueeze(-1), step, a.unsqueeze(-1)).squeeze(-1)
        return torch.stack(ends), a

    def kappas(self, ends: Tensor) -> tuple[Tensor, Tensor]:
        """kappa and mu of every node, both (P, q, B, d)."""
        full = torch.cat([ends, torch.ones_like(ends[..., :1])], dim=-1)
        kappa = torch.einsum("pbjlm,pbm->pjbl", self.solved, full)
        return kappa, torch.einsum("pibkl,pibk->pibl", self.jacobian, kappa)


def agree(found: Tensor, true: Tensor, kappa: Tensor, jacobian: Tensor) -> Tensor:
    """Whether products agree up to rounding: those of every node and sample are judged by their own size.

    The Jacobian of a sample may be small because terms cancel; what they round off is that of the other samples.
    """
    eps = torch.finfo(found.dtype).eps
    allowed = min(max(1e-9, 1e3 * eps), 0.1)

    def largest(x: Tensor) -> Tensor:
        return x.abs().flatten(3).amax(-1)

    size = torch.maximum(largest(true), largest(found))
    rates = largest(jacobian)
    usual = rates.median(dim=-1, keepdim=True).values
    rounding = 1e2 * eps * largest(kappa) * torch.maximum(rates, usual)
    return (largest(found - true) <= allowed * size + rounding).all()
