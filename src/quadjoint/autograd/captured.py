"""What modules held when a solve ran, so that its backward pass evaluates the same function.

Between a forward and its backward pass a program may give a module another condition, switch it to evaluation, or
leave ``functional_call``. The tensors and flags of every module that a function can be seen to hold are noted when
the solve starts, and put back while its backward pass runs, if they have changed.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from quadjoint.autograd import private

_LIMIT = 500  # things looked at; a function that holds more than this is not searched to the end
_LONG = 64  # entries of a container; a longer one is data
_LIBRARIES = ("torch", "numpy", "functools", "builtins", "scipy")  # whose functions hold nothing of the user's


class Snapshot:
    """The tensors and the training flags of the modules that a function holds."""

    def __init__(self, f: Callable[..., Any] | None, device: torch.device) -> None:
        search = _Search()
        search.visit(f)
        self.device = device.type
        self.modules, self.others = search.modules, search.tensors
        self.tensors: list[tuple[MutableMapping[str, Any], str, Tensor]] = []
        self.flags = [(m, m.training) for m in self.modules]
        for module in self.modules:
            for table in private.tensor_tables(module):
                self.tensors += [(table, name, x) for name, x in table.items() if isinstance(x, Tensor)]

    def learnable_tensors(self) -> list[Tensor]:
        """Tensors that require grad and that the function can be seen to hold."""
        everything = (*(x for _, _, x in self.tensors), *self.others)
        return list({id(x): x for x in everything if x.requires_grad}.values())

    @contextmanager
    def reinstated(self) -> Iterator[None]:
        """Everything as it was; autocast is off, as it is for all but f while the solve runs."""
        tensors = [entry for entry in self.tensors if entry[0].get(entry[1]) is not entry[2]]
        # One level only: train() would also set the flags of the children.
        flags = [(m.__dict__, "training", flag) for m, flag in self.flags if m.training is not flag]
        with private.replaced([*tensors, *flags]) if tensors or flags else nullcontext(), without_autocast(self.device):
            yield


def autocast_dtype(device: str) -> torch.dtype | None:
    """The lower precision in which operations on a type of device run at the moment, if any."""
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Operations in the precision of their tensors."""
    return nullcontext() if autocast_dtype(device) is None else torch.autocast(device, enabled=False)


class _Search:
    """Modules and tensors that a callable is, holds as an attribute or argument, closes over, or names as a global."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.tensors: list[Tensor] = []
        self.seen: set[int] = set()

    def visit(self, x: Any) -> None:
        if isinstance(x, Tensor):
            self.tensors.append(x)
            return
        if isinstance(x, str | int | float | type | types.ModuleType | None) or id(x) in self.seen:
            return
        if len(self.seen) >= _LIMIT:
            return
        self.seen.add(id(x))
        if isinstance(x, nn.Module):
            self._module(x)
        elif isinstance(x, types.FunctionType):
            self._function(x)
        elif isinstance(x, types.MethodType):
            self.visit(x.__self__)
            self.visit(x.__func__)
        elif isinstance(x, functools.partial):
            for part in (x.func, x.args, x.keywords):
                self.visit(part)
        elif isinstance(x, dict | list | tuple):
            if len(x) <= _LONG:
                for part in x.values() if isinstance(x, dict) else x:
                    self.visit(part)
        else:
            self._object(x)

    def _module(self, module: nn.Module) -> None:
        found = [m for m in module.modules() if m is module or id(m) not in self.seen]
        self.seen.update(id(m) for m in found)
        self.modules += found
        for m in found:
            for name, value in m.__dict__.items():
                # Functions, lists of modules and other holders; the tables of torch hold neither.
                if name not in private.TABLES and (
                    callable(value) or (isinstance(value, dict | list | tuple) and value)
                ):
                    self.visit(value)

    def _function(self, fn: types.FunctionType) -> None:
        if (fn.__module__ or "").partition(".")[0] in _LIBRARIES:
            return
        for cell in fn.__closure__ or ():
            try:
                self.visit(cell.cell_contents)
            except ValueError:  # not assigned yet
                continue
        for value in (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()):
            self.visit(value)
        for name in fn.__code__.co_names:
            value = fn.__globals__.get(name)
            if isinstance(value, nn.Module | Tensor | types.FunctionType | functools.partial):
                self.visit(value)
        wrapped = getattr(fn, "__wrapped__", None)
        if wrapped is not None:
            self.visit(wrapped)

    def _object(self, x: Any) -> None:
        if callable(x):
            for base in type(x).__mro__:
                if isinstance(base.__dict__.get("__call__"), types.FunctionType):
                    self.visit(base.__dict__["__call__"])
                    break
        attributes = getattr(x, "__dict__", None)
        for value in list(attributes.values()) if isinstance(attributes, dict) else ():
            self.visit(value)
        for base in type(x).__mro__:
            names = base.__dict__.get("__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                if not name.startswith("__"):
                    self.visit(getattr(x, name, None))
