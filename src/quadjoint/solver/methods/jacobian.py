"""df/dy of the dynamics: of every sample, of the whole state, or as a product only.

Samples are rows of the state that do not influence each other. Whether they do is tried once, with a product that would
show it; a state whose rows depend on each other is taken as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from quadjoint.autograd.recorded import Recording, record
from quadjoint.errors import SolveError
from quadjoint.solver.krylov import gmres
from quadjoint.solver.methods.stages import Factors, StageMatrix, factorize
from quadjoint.solver.protocols import Time, VectorField

SAMPLE = 64  # numbers in a sample up to which its Jacobian is computed
WHOLE = 256  # numbers in a state up to which its Jacobian as a whole is
COUPLED = 1e-3  # influence of rows on each other, in parts of their Jacobians, from which they are no samples
FORCING = 1e-2  # part of the residual that a Krylov method may leave to the next Newton iteration
SOLVERS = ("auto", "batched", "dense", "krylov")
Products = Callable[[Tensor], Tensor]  # a stack of a to a^T df/dy, both of shape (m, rows, d)
LinearSolver = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]


@dataclass(frozen=True)
class Samples:
    """A state as rows of d real numbers each; complex numbers count twice."""

    shape: torch.Size
    dtype: torch.dtype  # of the real numbers
    complex: bool
    rows: int
    d: int

    @classmethod
    def of(cls, y: Tensor, d: int | None = None) -> Samples:
        """Rows of d numbers each, or the state as a whole."""
        n = y.numel() * (2 if y.is_complex() else 1)
        d = n if d is None else d
        return cls(y.shape, y.dtype.to_real(), y.is_complex(), n // max(1, d), d)

    def rows_of(self, y: Tensor) -> Tensor:
        """Shape (rows, d)."""
        return (torch.view_as_real(y.resolve_conj()) if self.complex else y).reshape(self.rows, self.d)

    def state_of(self, z: Tensor) -> Tensor:
        """Undo ``rows_of``; leading dimensions are kept."""
        if not self.complex:
            return z.reshape(self.shape)
        return torch.view_as_complex(z.reshape(*self.shape, 2).contiguous())

    def spread(self, x: Any) -> Any:
        """A number, or a real tensor that broadcasts against the state, as one that broadcasts against (rows, q, d)."""
        if not isinstance(x, Tensor):
            return x
        x = x.to(self.dtype)
        if x.numel() == 1:
            return x.reshape(1, 1, 1)
        full = x.expand(self.shape)
        full = torch.stack([full, full], dim=-1) if self.complex else full
        return full.reshape(self.rows, 1, self.d)


def splits(y: Tensor, *, batch: bool = False) -> Iterator[Samples]:
    """How the state may fall apart into samples, the smallest first; at last not at all.

    Of a ``batch``, whose first dimension counts samples that are known to be apart, none is larger than those.
    """
    parts = 2 if y.is_complex() else 1
    n = y.numel() * parts
    largest = n // max(1, len(y)) if batch else n
    sizes = [] if y.ndim < 2 or not n else [y.shape[-1] * parts, n // y.shape[0]]
    for d in dict.fromkeys([*(d for d in sizes if d < largest), largest]):
        yield Samples.of(y, d)


def linearize(f: VectorField, t: Time, y: Tensor, nudge: int = 0) -> Recording:
    """f(t, y) recorded, with real numbers in and out."""
    evaluate = f.dynamics

    def real(t: Any, x: Tensor) -> Tensor:
        if not y.is_complex():
            return evaluate(t, x, nudge)
        return torch.view_as_real(evaluate(t, torch.view_as_complex(x), nudge).resolve_conj())

    with torch.inference_mode(False):
        x = y.detach().clone() if y.is_inference() else y.detach()
        try:
            return record(real, t, torch.view_as_real(x.resolve_conj()) if y.is_complex() else x)
        except RuntimeError as error:
            if "requires grad" not in str(error):
                raise
            raise SolveError(
                f"Implicit methods differentiate f in y, which autograd refuses here: {error}. Write f in torch's "
                "operations, or give its derivative as options['jacobian']."
            ) from error


def transposed_products(recording: Recording, a: Tensor) -> Tensor:
    """a^T df/dy for a stack of a, shape (m, *y)."""
    if not recording.out.requires_grad:
        return torch.zeros_like(a)
    if len(a) == 1:
        (found,) = torch.autograd.grad(recording.out, recording.y, a[0], retain_graph=True, allow_unused=True)
        return torch.zeros_like(a) if found is None else found[None]
    try:
        (found,) = torch.autograd.grad(
            recording.out, recording.y, a, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
        return torch.zeros_like(a) if found is None else found
    except RuntimeError as error:  # of an operation that vmap does not know
        if "vmap" not in str(error) and "Batching rule" not in str(error) and "batch" not in str(error):
            raise
    rows = [torch.autograd.grad(recording.out, recording.y, x, retain_graph=True, allow_unused=True)[0] for x in a]
    return torch.stack([torch.zeros_like(a[0]) if x is None else x for x in rows])


def row_jacobians(products: Products, samples: Samples, like: Tensor, *, probed: bool = True) -> tuple[Tensor, Tensor]:
    """d out[r, j] / d y[r, i] by d products, shape (rows, d, d), and how wrong it is that rows are independent.

    One product more gives every row weights of its own; what a row takes from another is then weighted otherwise than
    assumed. The second result is that difference relative to the Jacobian, the largest of all rows.
    """
    rows, d = samples.rows, samples.d
    eye = torch.eye(d, dtype=like.dtype.to_real(), device=like.device)
    units = eye[:, None].expand(d, rows, d)
    if rows == 1 or not probed:
        return products(units).transpose(0, 1), eye.new_zeros(())
    probe = torch.cos(torch.arange(rows * d, dtype=torch.float64) * 1.7 + 0.3).to(eye).reshape(1, rows, d)
    found = products(torch.cat([units, probe]))
    jacobian = found[:d].transpose(0, 1)
    expected = torch.einsum("rj,rji->ri", probe[0], jacobian)
    size = jacobian.abs().amax((1, 2)).clamp(min=torch.finfo(eye.dtype).tiny)
    return jacobian, ((found[d] - expected).abs().amax(1) / size).amax()


def row_products(recording: Recording, samples: Samples) -> Products:
    """Products with rows of real numbers, whatever the state is made of."""
    if recording.y.is_complex():
        return lambda a: torch.stack(
            [samples.rows_of(x) for x in transposed_products(recording, torch.stack([samples.state_of(x) for x in a]))]
        )
    return lambda a: transposed_products(recording, a.reshape(-1, *recording.y.shape)).reshape(a.shape)


class RowJacobian:
    """The Jacobian of every row."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def factorize(self, stages: StageMatrix, h: Any) -> Factors:
        return factorize(stages, h.mT if isinstance(h, Tensor) else h, self.matrix)


class ProductJacobian:
    """v to J v of the whole state: the derivative of J^T u in u, which is recorded once."""

    def __init__(self, recording: Recording, solver: LinearSolver | None = None) -> None:
        self.solver = solver
        self.image = None
        if recording.out.requires_grad:
            with torch.enable_grad():
                self.u = torch.zeros_like(recording.out, requires_grad=True)
                try:
                    (image,) = torch.autograd.grad(
                        recording.out, recording.y, self.u, create_graph=True, allow_unused=True
                    )
                except RuntimeError as error:
                    raise SolveError(
                        "A state of this size needs products with df/dy, for which f has to be twice differentiable; "
                        f"torch says: {error}. Give options['jacobian'], or options={{'linear_solver': 'dense'}}."
                    ) from error
            self.image = image if image is not None and image.requires_grad else None

    def __call__(self, v: Tensor) -> Tensor:
        if self.image is None:
            return torch.zeros_like(v)
        (out,) = torch.autograd.grad(self.image, self.u, v.reshape(self.image.shape), retain_graph=True)
        return out.reshape(v.shape)

    def factorize(self, stages: StageMatrix, h: Any) -> Factors:
        return _ByProducts(self, stages, h)


class _ByProducts:
    """The linear equations of stages, solved by a Krylov method or by one that the user gives."""

    def __init__(self, product: ProductJacobian, stages: StageMatrix, h: Any) -> None:
        self.product, self.stages, self.h = product, stages, h

    def apply(self, z: Tensor) -> Tensor:
        moved = torch.stack([self.product(x) for x in z.unbind(1)], dim=1)
        return z - torch.matmul(self.stages.constant("a", z), moved) * self.h

    def solve(self, r: Tensor) -> Tensor:
        if self.product.solver is not None:
            return self.product.solver(self.apply, r)
        size = float(torch.linalg.vector_norm(r))
        return gmres(self.apply, r, target=FORCING * size).x if math.isfinite(size) else r


class Jacobian(Protocol):
    """df/dy at a point, in whichever way it is known."""

    def factorize(self, stages: StageMatrix, h: Any) -> Factors:
        """The equations of stages for steps of length h."""


@dataclass(frozen=True)
class JacobianSource:
    """Where Jacobians come from: autograd, or a function of the user's."""

    given: Callable[..., Tensor] | None = None
    solver: str | LinearSolver = "auto"

    def first(self, f: VectorField, t: Time, y: Tensor, nudge: int, *, batch: bool = False) -> tuple[Samples, Jacobian]:
        """A Jacobian, and what the samples are, for the other Jacobians of this solve."""
        whole = Samples.of(y)
        if f.own_jacobian is not None:
            return whole, f.own_jacobian(t, y, nudge)
        if self.given is not None:
            return self._given(f, t, y)
        recording = linearize(f, t, y, nudge)
        if callable(self.solver) or self.solver == "krylov":
            return whole, ProductJacobian(recording, self.solver if callable(self.solver) else None)
        for samples in [whole] if self.solver == "dense" else list(splits(y, batch=batch)):
            if self.solver == "auto" and samples.d > (WHOLE if samples.rows == 1 else SAMPLE):
                continue
            found, coupling = row_jacobians(row_products(recording, samples), samples, y)
            if self.solver != "auto" or not float(coupling) > COUPLED:
                return samples, RowJacobian(found)
        return whole, ProductJacobian(recording)

    def again(self, f: VectorField, t: Time, y: Tensor, nudge: int, samples: Samples) -> Jacobian:
        """The Jacobian at another point of the same solve."""
        if f.own_jacobian is not None:
            return f.own_jacobian(t, y, nudge)
        if self.given is not None:
            return self._given(f, t, y)[1]
        recording = linearize(f, t, y, nudge)
        if callable(self.solver) or self.solver == "krylov" or (samples.rows == 1 and samples.d > self._largest):
            return ProductJacobian(recording, self.solver if callable(self.solver) else None)
        return RowJacobian(row_jacobians(row_products(recording, samples), samples, y)[0])

    @property
    def _largest(self) -> float:
        return WHOLE if self.solver == "auto" else math.inf

    def _given(self, f: VectorField, t: Time, y: Tensor) -> tuple[Samples, Jacobian]:
        """What the user's function returns: one matrix for every sample, or one for the state as a whole."""
        assert self.given is not None
        found = f.dynamics.jacobian(self.given, t, y)
        n, d = y.numel(), y.shape[-1] if y.ndim else 1
        if found.shape == (n, n) and found.shape != (*y.shape, d):
            d = n
        elif found.shape != (*y.shape, d) and not (y.ndim == 0 and found.numel() == 1):
            raise ValueError(
                f"options['jacobian'] returned shape {tuple(found.shape)} for a state of shape {tuple(y.shape)}; it "
                f"must be {(*y.shape, d)}, a matrix for every sample, or {(n, n)}, one for the whole state."
            )
        if y.is_complex():
            raise ValueError("options['jacobian'] is for real states; leave it out for a complex one.")
        samples = Samples.of(y, d)
        return samples, RowJacobian(found.detach().to(y).reshape(samples.rows, d, d))
