"""Counts what an accelerator would have to be told: kernels launched, and reads that make the host wait for it.

Both are the same on every machine: the operations that torch dispatches, views and allocations apart, and the
operations that hand numbers of a tensor to Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Operations that return memory as it is, or numbers that the host knows.
ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh"}
UNMARKED_VIEWS = {"_unsafe_view", "_reshape_alias", "lift"}
# Operations whose result the host needs before it can go on: a number, or the shape of what follows.
READS = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2", "unique_dim"}
# An array shares the memory of a tensor on the host; one on a device has to be brought there by a copy before.
READING_METHODS = ("tolist", "cpu")


@dataclass
class Counts:
    """Operations by name: ``kernels`` that compute, ``reads`` by the host, ``views`` and allocations."""

    kernels: dict[str, int] = field(default_factory=dict)
    reads: dict[str, int] = field(default_factory=dict)
    views: dict[str, int] = field(default_factory=dict)

    def note(self, kind: str, name: str) -> None:
        table: dict[str, int] = getattr(self, kind)
        table[name] = table.get(name, 0) + 1

    def totals(self) -> dict[str, int]:
        return {kind: sum(getattr(self, kind).values()) for kind in ("kernels", "reads", "views")}


class _Dispatched(TorchDispatchMode):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in READS:
            # The state of a random generator (bytes) lies on the host, whatever the device.
            if not any(isinstance(x, Tensor) and x.dtype == torch.uint8 for x in args):
                self.counts.note("reads", name)
        elif name in ALLOCATIONS or name in UNMARKED_VIEWS or _is_view(func):
            self.counts.note("views", name)
        else:
            self.counts.note("kernels", name)
        return out


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write


@contextmanager
def _called(counts: Counts) -> Iterator[None]:
    """Counts what is not dispatched on a CPU, where the numbers lie at hand.

    The methods themselves are replaced: a mode of torch's functions is not active within ``backward``.
    """

    def counted(name: str) -> Any:
        method = getattr(Tensor, name)

        def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            counts.note("reads", name)
            return method(self, *args, **kwargs)

        return call

    for name in READING_METHODS:
        setattr(Tensor, name, counted(name))
    try:
        yield
    finally:
        for name in READING_METHODS:
            delattr(Tensor, name)  # what its base class has shows again


@contextmanager
def counting() -> Iterator[Counts]:
    """Counts while it is entered, also in backward passes.

    >>> with counting() as counts:
    ...     total = float(torch.ones(3).add(1.0).sum())
    >>> counts.totals()
    {'kernels': 3, 'reads': 1, 'views': 0}
    """
    counts = Counts()
    with _called(counts), _Dispatched(counts):
        yield counts
