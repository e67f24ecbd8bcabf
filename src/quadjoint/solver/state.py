"""States of any structure as one tensor, and norms on them.

The solver works on a single tensor. A tensor state keeps its shape; the tensors of a tuple, a dict or any nesting of
such are laid out in one flat vector, or, if each sample has its own times, in one ``(batch, features)`` matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.solver.structure import Structure

State = Tensor | tuple[Any, ...] | list[Any] | dict[Any, Any]  # tensors, nested in any way
Norm = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """How several tensors lie in one; ``shapes`` is None for a state that is a tensor already.

    ``structure`` is what holds them, None for a plain tuple.
    """

    shapes: tuple[torch.Size, ...] | None = None
    batched: bool = False  # keep the leading dimension: (batch, features)
    structure: Structure | None = None

    @classmethod
    def of(cls, y0: State, batched: bool = False) -> Layout:
        if isinstance(y0, Tensor):
            return cls()
        structure = Structure.of(y0)
        return cls(tuple(part.shape for part in structure.flatten(y0)), batched, structure)

    def flatten(self, state: Any, says: str = "") -> Sequence[Any]:
        """The tensors of a state that is not one tensor; ``says`` begins the sentence about another structure."""
        return state if self.structure is None else self.structure.flatten(state, says)

    def path(self, index: int) -> str:
        """How a tensor of the state is written in Python, the state being y."""
        return f"y[{index}]" if self.structure is None else self.structure.paths("y")[index]

    def pack(self, state: Any) -> Tensor:
        """The state as one tensor."""
        if self.shapes is None:
            assert isinstance(state, Tensor)
            return state
        return self.join(self.flatten(state))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The tensors of a state, in order, as one."""
        if self.batched:
            return torch.cat([part.reshape(part.shape[0], -1) for part in parts], dim=1)
        return torch.cat([part.reshape(-1) for part in parts])

    def unpack(self, y: Tensor, leading: int = 0) -> Any:
        """Undo ``pack``; the first ``leading`` dimensions of ``y`` (observations, a stack) are kept."""
        if self.shapes is None:
            return y
        return self.hold(self.split(y, leading))

    def hold(self, parts: Sequence[Tensor]) -> Any:
        """The state made of its tensors."""
        return tuple(parts) if self.structure is None else self.structure.unflatten(iter(parts))

    def split(self, y: Tensor, leading: int = 0) -> list[Tensor]:
        """Undo ``join``."""
        if self.shapes is None:
            return [y]
        lead = y.shape[:leading]
        parts, start = [], 0
        for shape in self.shapes:
            size = math.prod(shape[1:] if self.batched else shape)
            parts.append(y[..., start : start + size].reshape((*lead, *shape)))
            start += size
        return parts

    def tolerance(self, name: str, value: Any) -> float | Tensor:
        """A tolerance per tensor of the state becomes a tolerance per entry of the packed state.

        It has the structure of the state; a number stands for all the tensors at its place.
        """
        if isinstance(value, Real | Tensor):
            return value  # type: ignore[return-value]
        if not isinstance(value, list | tuple | dict):
            raise TypeError(f"{name} must be a number, a tensor or a tuple of them; got {type(value).__name__}.")
        if self.shapes is None:
            raise TypeError(
                f"{name} is a {type(value).__name__}, but the state is a tensor; give a number, or a tensor of one "
                "for each entry."
            )
        assert self.structure is not None
        parts = self.structure.flatten(value, f"{name} has", spread=True)
        for part, path in zip(parts, self.structure.paths(name), strict=True):
            if not isinstance(part, Real | Tensor):
                raise TypeError(f"{path} must be a number or a tensor; got {type(part).__name__}.")
        wide = (torch.as_tensor(part, dtype=torch.float64, device="cpu") for part in parts)
        return self.join([part.expand(shape) for part, shape in zip(wide, self.shapes, strict=True)])

    def norm(self, norm: Callable[..., Tensor] | None) -> Norm:
        """The norm on packed states: the user's (which sees the user's structure), or the default one."""
        if self.shapes is None:
            return norm or rms_norm
        if norm is None:
            return lambda y: mixed_norm(self.split(y))
        return lambda y: norm(self.unpack(y))


def is_finite(y: Tensor) -> bool:
    """Whether all entries are finite; those that ``torch.func.vmap`` hides are taken to be."""
    if y.numel() == 0:
        return True
    try:
        # The largest modulus is NaN if any is; of complex numbers it may overflow.
        return math.isfinite(float(max_norm(y.detach()))) or (y.is_complex() and bool(torch.isfinite(y).all()))
    except RuntimeError:
        if not private.inside_transform():
            raise
        return True


def sizes(norm: Norm, *parts: Tensor) -> list[float]:
    """Norms as numbers, by one look of the host."""
    found = [torch.linalg.vector_norm(x) if norm is rms_norm else norm(x) for x in parts]
    factor = 1.0 / math.sqrt(max(parts[0].numel(), 1)) if norm is rms_norm else 1.0
    if len(found) == 1 or private.inside_transform() or not all(isinstance(x, Tensor) for x in found):
        return [factor * float(x) for x in found]
    values: list[float] = torch.stack([x.reshape(()) for x in found]).tolist()
    return [factor * value for value in values]


def relative_error(error: Tensor, y0: Tensor, y1: Tensor, *, rtol: float | Tensor, atol: float | Tensor) -> Tensor:
    """An error in units of atol + rtol * max(abs(y0), abs(y1)), in each entry."""
    return error / torch.maximum(y0.abs(), y1.abs()).mul_(rtol).add_(atol)


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


def check_not_empty(shapes: Iterable[torch.Size], what: str) -> None:
    """Refuse states without a single number where something is made of each."""
    if not any(math.prod(s) for s in shapes):
        got = ", ".join(str(tuple(s)) for s in shapes)
        raise ValueError(f"{what} needs a state of one number or more; y0 has shape {got}. Leave out an empty batch.")
