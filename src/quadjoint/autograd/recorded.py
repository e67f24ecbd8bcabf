"""Evaluations that autograd has recorded, and what they keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quadjoint.autograd import private

Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]  # of what autograd saves

_recording: ContextVar[bool] = ContextVar("recording", default=False)
_counting: ContextVar[Hooks | None] = ContextVar("counting", default=None)
NOTHING: AbstractContextManager[Any] = nullcontext()


class Recording(NamedTuple):
    """An evaluation that autograd has recorded: what came out, and the input that it can be differentiated in."""

    out: Tensor
    y: Tensor


def record(
    f: Callable[[Any, Tensor], Tensor], t: Any, y: Tensor, within: AbstractContextManager[Any] = NOTHING
) -> Recording:
    """One evaluation of f, recorded by autograd; ``y`` itself is the input if it requires grad."""
    token = _recording.set(True)
    try:
        with torch.enable_grad(), within:
            leaf = y if y.requires_grad else y.detach().requires_grad_()
            return Recording(f(t, leaf), leaf)
    finally:
        _recording.reset(token)


def record_and_count(
    f: Callable[[Any, Tensor], Tensor], t: Any, y: Tensor, params: Iterable[Tensor]
) -> tuple[Recording, int | None]:
    """One recorded evaluation and the bytes that autograd keeps for it; None if they cannot be counted."""
    try:
        with saved_bytes(params) as total:
            return record(f, t, y), total[0]
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):  # which torch.func.grad and the like inside f do not allow
            raise
        return record(f, t, y), None


def is_recorded_already() -> bool:
    """Within an evaluation that is itself recorded, or if hooks (a checkpoint) would see what is kept."""
    return _recording.get() or private.saved_tensors_are_watched()


@contextmanager
def saved_bytes(params: Iterable[Tensor]) -> Iterator[list[int]]:
    """Bytes of the storages that autograd saves meanwhile, those of the parameters excepted."""
    total, seen = [0], {pointer for p in params if (pointer := _pointer(p)) is not None}

    def pack(x: Tensor) -> tuple[Tensor, int]:
        pointer = _pointer(x)
        if pointer is not None and pointer not in seen:
            seen.add(pointer)
            total[0] += x.untyped_storage().nbytes()
        # Not the tensor itself, which its own graph would keep alive.
        return x.detach(), private.version(x)

    def unpack(kept: tuple[Tensor, int]) -> Tensor:
        x, version = kept
        if private.version(x) != version:  # as autograd does if no hooks are in the way
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"a tensor of shape {tuple(x.shape)} that f used or made"
            )
        return x

    token = _counting.set((pack, unpack))
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield total
    finally:
        _counting.reset(token)


def unwatched() -> AbstractContextManager[Any]:
    """What autograd saves meanwhile is counted, if it is at all, but kept from hooks that are not the library's.

    A checkpoint would compute all again for a gradient that f itself asks for.
    """
    return torch.autograd.graph.saved_tensors_hooks(*(_counting.get() or (_itself, _itself)))


def _itself(x: Any) -> Any:
    return x


def share_numbers(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors of one dtype are the same numbers in the same memory; False if that cannot be seen."""
    if x is y:
        return True
    place, other = ((a.shape, a.stride(), a.storage_offset()) if a.layout == torch.strided else None for a in (x, y))
    return place is not None and place == other and _pointer(x) is not None and _pointer(x) == _pointer(y)


def _pointer(x: Tensor) -> int | None:
    """Where the numbers of a tensor lie; None if it is sparse, wrapped by a transform, or has no shape yet."""
    try:
        return x.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError, ValueError):
        return None
