"""A device that only pretends to compute: torch's meta tensors, with answers for the host.

It shows without a device what would go wrong on one: tensors made in the wrong place, tensors of the host mixed in,
double precision where the state has single. Every number that the host reads is one half, so that an error of a step is
always small enough; every whole number is one that can be chosen.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")
ANSWER = 0.5


class WrongTensor(AssertionError):
    """A tensor took part in an operation on the device that must not be there."""


class _Checked(TorchDispatchMode):
    def __init__(self, seen: PretendedDevice) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        on_device = [x for x in tensors if x.device == META]
        if not on_device:
            return func(*args, **kwargs)
        if name == "_local_scalar_dense":
            self.seen.reads[name] += 1
            return ANSWER if on_device[0].is_floating_point() else on_device[0].dtype == torch.bool
        if name in ("_to_copy", "copy_"):
            return self._copied(func, name, args, kwargs)
        self._check(func, tensors, on_device)
        self.seen.operations[name] += 1
        if name == "nonzero":
            return torch.empty(self.seen.whole, args[0].ndim, dtype=torch.int64, device=META)
        return func(*args, **kwargs)

    def _copied(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Copies may go from one place to the other; those to the host are reads."""
        to = args[0].device if name == "copy_" else torch.device(kwargs.get("device") or META)
        if to != META:
            self.seen.reads[name] += 1
            return torch.full(args[-1].shape, ANSWER, dtype=kwargs.get("dtype") or args[-1].dtype)
        self._check(func, [], [x for x in args if isinstance(x, Tensor) and x.device == META])
        return func(*args, **kwargs)

    def _check(self, func: Any, tensors: list[Tensor], on_device: list[Tensor]) -> None:
        for x in tensors:
            if x.device != META and x.ndim > 0:
                raise WrongTensor(
                    f"{func} mixes a tensor of the host, shape {tuple(x.shape)}, with those of the device"
                )
        for x in on_device:
            if x.dtype in self.seen.forbidden:
                raise WrongTensor(f"{func} has a tensor of {x.dtype}, shape {tuple(x.shape)}")


class _Listed(TorchFunctionMode):
    def __init__(self, seen: PretendedDevice) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.tolist and args[0].device == META:
            self.seen.reads["tolist"] += 1
            fraction = args[0].is_floating_point()
            return torch.full(args[0].shape, ANSWER if fraction else self.seen.whole).tolist()
        return func(*args, **(kwargs or {}))


class PretendedDevice:
    """Checks the operations on meta tensors while it is entered, and counts them and the reads of the host."""

    def __init__(self, forbidden: tuple[torch.dtype, ...] = (), whole: int = 0) -> None:
        self.forbidden, self.whole = forbidden, whole
        self.reads: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.modes = _Listed(self), _Checked(self)

    def __enter__(self) -> PretendedDevice:
        for mode in self.modes:
            mode.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        for mode in reversed(self.modes):
            mode.__exit__(*failure)
