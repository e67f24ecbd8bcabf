"""How far the collocation equations are from the adjoint equation, from what the sweep computes anyway."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quadjoint.gradient.collocation.rule import CollocationRule


class ErrorEstimate:
    """The error of the adjoint that q nodes a panel leave, along the trajectory that was kept.

    The rates mu_i / b_i of a panel are a polynomial of degree q - 1; its Legendre coefficients fall by a factor from
    degree to degree. q Gauss nodes integrate up to degree 2 q - 1, so the first that is missed has degree 2 q, and its
    size follows from the last one that is seen and that factor.
    """

    def __init__(self, rule: CollocationRule) -> None:
        self.rule = rule
        self.total: Tensor | None = None

    def add(self, mu: Tensor, a: Tensor) -> None:
        """Panels with mu of shape (P, q, numbers) and adjoints ``a`` at their ends, (P, numbers)."""
        weights = self.rule.coefficients / self.rule.b  # mu to Legendre coefficients of the rates
        kept = weights[-2:] if self.rule.q > 1 else weights
        found = torch.matmul(torch.as_tensor(kept, dtype=mu.dtype, device=mu.device), mu)
        sizes = torch.linalg.vector_norm(found, dim=-1)  # (P, 2)
        last, before = sizes[:, -1], sizes[:, 0]
        falls = (last / before.clamp(min=torch.finfo(sizes.dtype).tiny)).clamp(max=1.0)
        missed = last * falls ** (self.rule.q + 1)
        size = torch.linalg.vector_norm(a, dim=-1).amax()
        part = torch.stack([missed.sum(), size])
        if self.total is None:
            self.total = part
        else:
            self.total = torch.stack([self.total[0] + part[0], torch.maximum(self.total[1], part[1])])

    def relative(self) -> float | None:
        """The error in units of the largest adjoint; one look of the host."""
        if self.total is None:
            return None
        error, size = self.total.tolist()
        return error / size if size > 0.0 and math.isfinite(error) else error
