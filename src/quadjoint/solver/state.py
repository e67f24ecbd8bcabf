"""States of any structure as one tensor, and norms on them.

The solver works on a single tensor. A tensor state keeps its shape; a tuple of tensors is laid out in one flat
vector, or, where each sample has its own times, in one ``(batch, features)`` matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

State = Tensor | tuple[Tensor, ...]
Norm = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """How a tuple of tensors lies in one tensor; ``shapes`` is None for a state that is a tensor already."""

    shapes: tuple[torch.Size, ...] | None = None
    batched: bool = False  # keep the leading dimension: (batch, features)

    @classmethod
    def of(cls, y0: State, batched: bool = False) -> Layout:
        if isinstance(y0, Tensor):
            return cls()
        return cls(tuple(part.shape for part in y0), batched)

    def pack(self, parts: State) -> Tensor:
        if self.shapes is None:
            assert isinstance(parts, Tensor)
            return parts
        if self.batched:
            return torch.cat([part.reshape(part.shape[0], -1) for part in parts], dim=1)
        return torch.cat([part.reshape(-1) for part in parts])

    def unpack(self, y: Tensor, leading: int = 0) -> State:
        """Undo ``pack``; the first ``leading`` dimensions of ``y`` (observations, a stack) are kept."""
        if self.shapes is None:
            return y
        lead = y.shape[:leading]
        parts, start = [], 0
        for shape in self.shapes:
            size = math.prod(shape[1:] if self.batched else shape)
            parts.append(y[..., start : start + size].reshape((*lead, *shape)))
            start += size
        return tuple(parts)

    def tolerance(self, name: str, value: float | Tensor | Sequence[float | Tensor]) -> float | Tensor:
        """A tolerance per component of a tuple becomes a tolerance per entry of the packed state."""
        if isinstance(value, Real | Tensor):
            return value
        if not isinstance(value, list | tuple):
            raise TypeError(f"{name} must be a number, a tensor or a tuple of them; got {type(value).__name__}.")
        if self.shapes is None:
            raise TypeError(f"{name} is a sequence, which needs a tuple state; got a tensor state.")
        if len(value) != len(self.shapes):
            raise ValueError(f"{name} has {len(value)} entries, but the state has {len(self.shapes)} tensors.")
        parts = [torch.as_tensor(v).expand(s) for v, s in zip(value, self.shapes, strict=True)]
        return self.pack(tuple(parts))

    def norm(self, norm: Callable[..., Tensor] | None) -> Norm:
        """The norm on packed states: the user's (which sees the user's structure), or the default one."""
        if self.shapes is None:
            return norm or rms_norm
        inner: Callable[..., Tensor] = norm or mixed_norm
        return lambda y: inner(self.unpack(y))


def error_ratio(
    error: Tensor, y0: Tensor, y1: Tensor, *, rtol: float | Tensor, atol: float | Tensor, norm: Norm
) -> Tensor:
    """Size of an error in units of atol + rtol * max(abs(y0), abs(y1)), in each entry."""
    scale = torch.maximum(y0.abs(), y1.abs()).mul_(rtol).add_(atol)
    return norm(error / scale)


def rms_norm(y: Tensor) -> Tensor:
    """Root mean square of the entries."""
    return torch.linalg.vector_norm(y) / math.sqrt(max(y.numel(), 1))


def max_norm(y: Tensor) -> Tensor:
    """Largest modulus of the entries."""
    return torch.linalg.vector_norm(y, ord=math.inf)


def mixed_norm(parts: Sequence[Tensor]) -> Tensor:
    """The largest of the root mean squares of several tensors."""
    norms = [rms_norm(part) for part in parts if part.numel()]
    return torch.stack(norms).max() if norms else torch.zeros(())
