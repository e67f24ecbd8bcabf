"""How far the collocation equations are from the adjoint equation, from what the sweep computes anyway."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from quadjoint.errors import QuadjointWarning
from quadjoint.gradient.collocation.rule import CollocationRule

DEEPEST = 10  # halvings of all panels


class ErrorEstimate:
    """The error of the adjoint that q nodes a panel leave, along the trajectory that was kept.

    The error of a panel is the inner product of the defect of the polynomial with the solution of the linear equation
    that carries it to the end (Hairer, Norsett and Wanner, II.7). Both have no Legendre coefficients below the degree
    q that the nodes do not see; the last one that they see, c of the rates mu_i / b_i, stands for the first that they
    do not: the error is about 2 c^2 / ((4 q^2 - 1) |a|). It is an indication, right to a power of ten in four of
    five solves with smooth rates. Observations inside of steps break the rates, and strong damping carries errors
    nowhere: both make it too large.
    """

    def __init__(self, rule: CollocationRule) -> None:
        self.weights = rule.coefficients[-1:] / rule.b  # mu to the last Legendre coefficient of the rates
        self.constant = 2.0 / (4 * rule.q**2 - 1)
        self.total: Tensor | None = None

    def add(self, mu: Tensor, ends: Tensor, starts: Tensor) -> None:
        """Panels with mu of shape (P, q, numbers) and the adjoints at their ends and starts, (P, numbers)."""
        last = torch.matmul(torch.as_tensor(self.weights, dtype=mu.dtype, device=mu.device), mu)
        last, *sizes = (torch.linalg.vector_norm(x.flatten(1), dim=-1) for x in (last, ends, starts))
        size = torch.maximum(*sizes)
        missed = self.constant * last.square() / size.clamp(min=torch.finfo(size.dtype).tiny)
        part = torch.stack([missed.sum(), size.amax()])
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


Result = tuple[Tensor, list[Tensor | None]]  # dL/dy0 and the gradients of the parameters


def refine(sweep: Callable[[int], Result], rtol: float, q: int) -> tuple[Tensor, list[Tensor | None], float]:
    """Halve all panels until the gradient changes by less than ``rtol``; the last gradient and its estimated error.

    A change is the error of the coarser gradient. That of the finer one is smaller by the ratio of the last two
    changes, but not by more than 2**-(q + 1), the ratio for observations inside of steps.
    """
    before, last, estimate = sweep(0), math.inf, math.inf
    for depth in range(1, DEEPEST + 1):
        after = sweep(depth)
        change = _distance(before, after)
        ratio = 0.5 ** (q + 1) if not 0.0 < last < math.inf else min(1.0, max(change / last, 0.5 ** (q + 1)))
        before, last, estimate = after, change, change * ratio
        if change <= rtol or (depth > 1 and ratio > 0.5):
            break
    if estimate > rtol:
        warnings.warn(
            f"The gradient has an estimated relative error of {estimate:.1e}, more than the rtol = {rtol:.1e} that was "
            "asked for. Raise rtol, or compute in float64.",
            QuadjointWarning,
            stacklevel=2,
        )
    return *before, estimate


def _distance(a: Result, b: Result) -> float:
    """The largest relative change, of dL/dy0 and of all parameters together."""
    sums = [(x, y) for x, y in zip(a[1], b[1], strict=True) if x is not None and y is not None]
    norms = [
        [torch.linalg.vector_norm(a[0] - b[0]), torch.linalg.vector_norm(b[0])],
        [_norm([x - y for x, y in sums]), _norm([y for _, y in sums])],
    ]
    found = [[float(x) for x in pair] for pair in norms]
    return max((change / size if size > 0.0 else change) for change, size in found)


def _norm(tensors: list[Tensor]) -> Tensor:
    if not tensors:
        return torch.zeros(())
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(x).double().cpu() for x in tensors]))
