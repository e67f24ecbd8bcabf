"""Linear equations solved by products alone (GMRES; Saad and Schultz, 1986)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

DIMENSION = 40  # of the Krylov space
Linear = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class KrylovSolution:
    """What was found, and the norm of the true residual."""

    x: Tensor
    residual: float


def gmres(
    apply: Linear,
    right: Tensor,
    start: Tensor | None = None,
    *,
    target: float,
    dimension: int = DIMENSION,
    restarts: int = 0,
    precondition: Linear | None = None,
) -> KrylovSolution:
    """Solve apply(x) = right until the Euclidean norm of the residual is ``target`` or less, as far as it goes.

    ``precondition`` approximates the inverse of ``apply`` (from the right, so that residuals are true ones). A new
    space of the same dimension is begun ``restarts`` times. The host looks once a product. Complex numbers are taken
    for pairs, as derivatives of functions that are not holomorphic are linear in real numbers alone.
    """
    if right.is_complex():
        found = gmres(
            _of_pairs(apply),
            _pairs(right),
            None if start is None else _pairs(start),
            target=target,
            dimension=dimension,
            restarts=restarts,
            precondition=None if precondition is None else _of_pairs(precondition),
        )
        return KrylovSolution(torch.view_as_complex(found.x), found.residual)
    x = torch.zeros_like(right) if start is None else start
    residual = right if start is None else right - apply(x)
    size = _norm(residual)
    for _ in range(restarts + 1):
        if size <= target or not math.isfinite(size):
            break
        change = _one_space(apply, residual, size, target=target, dimension=dimension, precondition=precondition)
        better = x + (change if precondition is None else precondition(change))
        left = right - apply(better)
        smaller = _norm(left)
        if not smaller < size:  # rounding is all that is left, or it cannot be solved
            break
        x, residual, size = better, left, smaller
    return KrylovSolution(x, size)


def _pairs(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj())


def _of_pairs(function: Linear) -> Linear:
    """The function of complex numbers as one of their real and imaginary parts."""
    return lambda x: _pairs(function(torch.view_as_complex(x.contiguous())))


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x))


def _one_space(
    apply: Linear, residual: Tensor, beta: float, *, target: float, dimension: int, precondition: Linear | None
) -> Tensor:
    """The combination of the Krylov space that makes the residual least, before preconditioning."""
    shape = residual.shape
    basis = [(residual / beta).reshape(-1)]
    hessenberg = np.zeros((dimension + 1, dimension))
    weights: np.ndarray = np.zeros(0)
    for k in range(dimension):
        v = basis[-1].reshape(shape)
        w = apply(v if precondition is None else precondition(v)).reshape(-1)
        known = torch.stack(basis)
        dots = known @ w
        w = w - dots @ known
        again = known @ w  # once more, as one orthogonalisation loses what is nearly parallel
        w = w - again @ known
        column = torch.cat([dots + again, torch.linalg.vector_norm(w)[None]]).tolist()
        if not all(math.isfinite(x) for x in column):
            break
        hessenberg[: k + 2, k] = column
        right = np.zeros(k + 2)
        right[0] = beta
        weights, *_ = np.linalg.lstsq(hessenberg[: k + 2, : k + 1], right, rcond=None)
        left = np.linalg.norm(hessenberg[: k + 2, : k + 1] @ weights - right)
        if left <= 0.1 * target or column[-1] <= 1e-30:
            break
        basis.append(w / column[-1])
    if not len(weights):
        return torch.zeros_like(residual)
    return (torch.as_tensor(weights).to(residual) @ torch.stack(basis[: len(weights)])).reshape(shape)
