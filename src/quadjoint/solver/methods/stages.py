"""The linear equations of implicit stages: (I - h A (x) J) z = r, factorised once and solved many times.

With A = T diag(lambda) T^-1 they fall apart into (I - h lambda_m J) w_m = (T^-1 r)_m, one of each pair of conjugate
eigenvalues (Butcher 1976; Hairer and Wanner, section IV.8). Of small systems the inverse is kept: a solution is then a
single batched product.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

SMALL = 32  # unknowns of a sample up to which inverses are kept; above, factors


class StageMatrix:
    """The matrix A of stages that are solved for together, with its inverse and its eigenvalues.

    >>> import numpy as np
    >>> radau = StageMatrix(np.array([[5 / 12, -1 / 12], [3 / 4, 1 / 4]]))
    >>> len(radau.values), radau.real
    (1, False)
    """

    def __init__(self, a: np.ndarray) -> None:
        self.a, self.inverse = a, np.linalg.inv(a)
        self.q = len(a)
        values, vectors = np.linalg.eig(a)
        kept = values.imag >= 0.0
        self.real = bool((values.imag == 0.0).all())
        left: np.ndarray = np.linalg.inv(vectors)[kept]  # rows of T^-1
        right = vectors[:, kept] * np.where(values[kept].imag > 0.0, 2.0, 1.0)  # the real part counts both of a pair
        self.values = values[kept].real if self.real else values[kept]
        self.left, self.right = (left.real, right.real) if self.real else (left, right)
        self._constants: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def constant(self, name: str, like: Tensor) -> Tensor:
        """One of the arrays as a tensor beside ``like``; complex where it is complex."""
        key = name, like.dtype, like.device
        if key not in self._constants:
            array = getattr(self, name)
            dtype = like.dtype.to_complex() if np.iscomplexobj(array) else like.dtype
            self._constants[key] = torch.tensor(array, dtype=dtype, device=like.device)
        return self._constants[key]


class Factors(Protocol):
    """I - h A (x) J, ready to be solved."""

    def solve(self, r: Tensor) -> Tensor:
        """z of shape (rows, q, d) like r."""


def factorize(matrix: StageMatrix, h: float | Tensor, jacobian: Tensor) -> Factors:
    """``jacobian`` has shape (rows, d, d); ``h`` is a number, or (rows, 1, 1) for steps of their own."""
    d = jacobian.shape[-1]
    identity = torch.eye(d, dtype=jacobian.dtype, device=jacobian.device)
    if matrix.q == 1:
        shifted = (identity - jacobian * (h * float(matrix.a[0, 0])))[None]
    else:
        values = matrix.constant("values", jacobian).reshape(-1, 1, 1, 1)
        shifted = identity - values * (jacobian * h)
    if d * matrix.q <= SMALL:
        return _Inverse(matrix, shifted)
    return _Split(matrix, shifted)


class _Inverse:
    """The inverse of the whole matrix of every sample."""

    def __init__(self, matrix: StageMatrix, shifted: Tensor) -> None:
        inverses, _ = torch.linalg.inv_ex(shifted)  # (m, rows, d, d)
        if matrix.q == 1:
            self.inverse = inverses[0]
            return
        left, right = matrix.constant("left", shifted.real), matrix.constant("right", shifted.real)
        m, rows, d, _ = inverses.shape
        q = matrix.q
        outer = (right[:, :, None] * left[None]).transpose(1, 2).reshape(q * q, m)
        whole = (outer @ inverses.reshape(m, -1)).real.reshape(q, q, rows, d, d)
        self.inverse = whole.permute(2, 0, 3, 1, 4).reshape(rows, q * d, q * d)

    def solve(self, r: Tensor) -> Tensor:
        rows, q, d = r.shape
        return torch.bmm(self.inverse, r.reshape(rows, q * d, 1)).reshape(rows, q, d)


class _Split:
    """Factors for every eigenvalue."""

    def __init__(self, matrix: StageMatrix, shifted: Tensor) -> None:
        self.matrix = matrix
        self.factors, self.pivots, _ = torch.linalg.lu_factor_ex(shifted)  # (m, rows, d, d)

    def solve(self, r: Tensor) -> Tensor:
        if self.matrix.q == 1:
            return torch.linalg.lu_solve(self.factors[0], self.pivots[0], r.transpose(1, 2)).transpose(1, 2)
        left, right = self.matrix.constant("left", r), self.matrix.constant("right", r)
        w = torch.matmul(left, r.to(left.dtype)).transpose(0, 1)[..., None]  # (m, rows, d, 1)
        w = torch.linalg.lu_solve(self.factors, self.pivots, w)[..., 0].transpose(0, 1)  # (rows, m, d)
        out = torch.matmul(right, w)
        return out.real if out.is_complex() else out
