"""Graphs of evaluations that the forward solve keeps, so that the backward pass need not evaluate them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

_recording: ContextVar[bool] = ContextVar("recording", default=False)
NOTHING: AbstractContextManager[Any] = nullcontext()


class Graph(NamedTuple):
    """An evaluation that autograd has recorded: what came out, and the input that it can be differentiated in."""

    out: Tensor
    y: Tensor


class Tape:
    """Records evaluations of a solve that runs without grad, as many of those in accepted steps as are allowed.

    ``left`` is how many more may be kept. Until somebody sets it, the first evaluation is recorded, and ``measured``
    is called with the bytes that it keeps (None: unknown), to set it. ``within`` is a context to record in.
    """

    def __init__(self, measured: Callable[[Tape, int | None], None], params: tuple[Tensor, ...],
                 within: AbstractContextManager[Any]) -> None:  # fmt: skip
        self.measured, self.params, self.within = measured, params, within
        self.left: int | None = None
        self.pending: dict[int, tuple[Tensor, Graph]] = {}  # by the identity of what the solver has received

    def evaluate(self, f: Callable[[Tensor, Tensor], Tensor], t: Tensor, y: Tensor) -> Tensor:
        """f(t, y) without grad; its graph is kept aside."""
        if self.left is None:
            graph, count = record_and_count(f, t, y, self.params, self.within)
            self.measured(self, count)
        elif len(self.pending) < self.left:
            graph = record(f, t, y, self.within)
        else:
            return f(t, y).detach()  # also of a function that switches grad on by itself
        plain = graph.out.detach()
        if graph.out.requires_grad:
            self.pending[id(plain)] = plain, graph
        return plain

    def take(self, ks: list[Tensor]) -> list[Graph | None]:
        """The graphs of an accepted step's stages; those of rejected steps before it are dropped."""
        graphs = [self.pending.get(id(k), (k, None))[1] for k in ks]
        self.pending.clear()
        if self.left is not None:
            self.left = max(0, self.left - sum(g is not None for g in graphs))
        return graphs


def record(f: Callable[[Any, Tensor], Tensor], t: Any, y: Tensor,
           within: AbstractContextManager[Any] = NOTHING) -> Graph:  # fmt: skip
    """One evaluation of f, recorded by autograd."""
    token = _recording.set(True)
    try:
        with torch.enable_grad(), within:
            leaf = y.detach().requires_grad_()
            return Graph(f(t, leaf), leaf)
    finally:
        _recording.reset(token)


def record_and_count(f: Callable[[Any, Tensor], Tensor], t: Any, y: Tensor, params: Iterable[Tensor],
                     within: AbstractContextManager[Any]) -> tuple[Graph, int | None]:  # fmt: skip
    """One recorded evaluation and the bytes that autograd keeps for it; None where they cannot be counted."""
    try:
        with saved_bytes(params) as total:
            return record(f, t, y, within), total[0]
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):  # which torch.func.grad and the like inside f do not allow
            raise
        return record(f, t, y, within), None


def keeping_is_pointless() -> bool:
    """Within an evaluation that is itself recorded, or where hooks (a checkpoint) would see what is kept."""
    return _recording.get() or saved_tensors_are_watched()


@contextmanager
def saved_bytes(params: Iterable[Tensor]) -> Iterator[list[int]]:
    """Bytes of the storages that autograd saves meanwhile, those of the parameters excepted."""
    total, seen = [0], {p.untyped_storage().data_ptr() for p in params}

    def pack(x: Tensor) -> Tensor:
        try:
            storage = x.untyped_storage()
            pointer = storage.data_ptr()
        except (RuntimeError, NotImplementedError):  # sparse, or wrapped by a transform of torch.func
            return x
        if pointer not in seen:
            seen.add(pointer)
            total[0] += storage.nbytes()
        return x.detach()  # the tensor itself would be kept alive by its own graph

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        yield total


def saved_tensors_are_watched() -> bool:
    """Whether hooks (a checkpoint, offloading) would receive what the tape keeps; it is no part of their graph."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(True) is not None
