"""Which tensors a function depends on: the leaves of autograd's graph, and what the function's code can reach.

A graph shows what one evaluation used. Code also names what other evaluations will use, such as the second of two
networks in ``net1(y) if t < 1 else net2(y)``; it is read, not run.
"""

from __future__ import annotations

import dis
import functools
import os
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

_MISSING = object()
_LIBRARIES = tuple(os.path.dirname(str(m.__file__)) + os.sep for m in (torch, numpy))
_STANDARD = os.path.dirname(os.__file__) + os.sep
_LIMIT = 10_000  # things looked at; what is larger than this is data

# Whether the name is global, the name that code loads, the attributes that it takes of it.
Chain = tuple[bool, str, tuple[str, ...]]


def upstream(*outs: Tensor) -> Iterator[Any]:
    """The nodes of the graphs of ``outs``, each once, their own first."""
    seen: set[Any] = set()
    stack = [out.grad_fn for out in outs]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            stack.extend(parent for parent, _ in node.next_functions)


def leaves(*outs: Tensor) -> list[Tensor]:
    """Leaf tensors that require grad in the graphs of ``outs`` (or are one of them), in a fixed order."""
    found = {id(x): x for x in outs if x.is_leaf and x.requires_grad}
    for node in upstream(*outs):
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.setdefault(id(variable), variable)
    return list(found.values())


def separate(tensors: Sequence[Tensor], others: Iterable[Tensor] = ()) -> list[Tensor]:
    """The tensors, or the leaves behind them where one is computed from another or from one of ``others``.

    A gradient in each of the result, passed on by autograd to what it was computed from, then counts nothing twice.
    """
    everything = {id(x): x for x in (*others, *tensors)}
    made = {x.grad_fn for x in everything.values() if x.grad_fn is not None}
    for x in tensors:
        for node in upstream(x):
            if node is not x.grad_fn and (node in made or id(getattr(node, "variable", None)) in everything):
                return leaves(*tensors)
    return list(tensors)


def module_attributes(f: torch.nn.Module) -> list[Tensor]:
    """Tensors that are plain attributes of modules (a condition from an encoder, a replica of DataParallel)."""
    return [v for m in f.modules() for v in m.__dict__.values() if isinstance(v, Tensor) and v.requires_grad]


def reachable(f: Any) -> list[Tensor]:
    """Leaf tensors requiring grad that the code of a function names.

    They are looked for in closures, default values, arguments of partials, globals, the object of a method, the
    functions of the user's that are called, and containers of all these. Of an object, those attributes are taken
    that the code takes; of a module that is called, all parameters. What code finds in other ways (by ``getattr`` with
    a computed name, through the arguments of a function that it calls) is not seen.
    """
    search = _Search()
    search.visit(f)
    return leaves(*search.found.values())


class _Search:
    def __init__(self) -> None:
        self.found: dict[int, Tensor] = {}
        self.seen: dict[Any, Any] = {}  # with what is seen, as the identity of something freed may be used again

    def visit(self, x: Any) -> None:
        """Take in a thing as a whole: it is called, or handed to something else."""
        if isinstance(x, Tensor):
            if x.requires_grad:
                self.found[id(x)] = x
        elif isinstance(x, types.MethodType):
            if isinstance(x.__func__, types.FunctionType) and not _foreign(x.__func__):
                self.function(x.__func__, x.__self__)
            else:
                self.visit(x.__self__)
        elif id(x) not in self.seen and len(self.seen) < _LIMIT:
            self.seen[id(x)] = x
            self._visit_new(x)

    def _visit_new(self, x: Any) -> None:
        if isinstance(x, torch.nn.Module):
            for p in (*x.parameters(), *module_attributes(x)):
                self.visit(p)
        elif isinstance(x, types.FunctionType):
            self.function(x)
        elif isinstance(x, functools.partial):
            for part in (x.func, x.args, x.keywords):
                self.visit(part)
        elif isinstance(x, dict | list | tuple | set | frozenset):
            for part in list(x.values()) if isinstance(x, dict) else list(x):
                self.visit(part)
        elif not isinstance(x, type | types.ModuleType):
            call = _attribute(type(x), "__call__")
            if isinstance(call, types.FunctionType):
                self.function(call, x)
            else:  # data, of which the direct members are taken
                for part in list(getattr(x, "__dict__", {}).values()):
                    if isinstance(part, Tensor | torch.nn.Module | dict | list | tuple):
                        self.visit(part)

    def function(self, fn: types.FunctionType, owner: Any = _MISSING) -> None:
        """Resolve the names in the code of a function, bound to ``owner`` if it is a method."""
        key = (fn, id(owner))
        if key in self.seen:
            return
        self.seen[key] = owner
        code = fn.__code__
        names: dict[str, Any] = dict(fn.__kwdefaults__ or {})
        defaults = fn.__defaults__ or ()
        names.update(zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True))
        for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
            names[name] = _contents(cell)
        if _foreign(fn):  # perhaps a decorator, which holds the function of the user
            for value in names.values():
                if isinstance(value, types.FunctionType | types.MethodType | torch.nn.Module):
                    self.visit(value)
            return
        if owner is not _MISSING and code.co_argcount:
            names[code.co_varnames[0]] = owner
        for is_global, name, attributes in _chains(code):
            x = (fn.__globals__ if is_global else names).get(name, _MISSING)
            if x is not _MISSING:
                self.follow(x, attributes)

    def follow(self, x: Any, attributes: tuple[str, ...]) -> None:
        """Go along ``x.a.b`` as far as it is known, and take in what is there."""
        for name in attributes:
            value = _MISSING if isinstance(x, Tensor) else _attribute(x, name)
            if isinstance(value, property):
                value = value.fget
            if value is _MISSING:
                if not isinstance(x, Tensor | torch.nn.Module):
                    return
                break
            if isinstance(value, types.FunctionType) and not isinstance(x, type | types.ModuleType):
                value = types.MethodType(value, x)
            x = value
        self.visit(x)


def _attribute(x: Any, name: str) -> Any:
    """An attribute without running any code of the object's."""
    own = getattr(x, "__dict__", {})
    kinds = ("_parameters", "_modules", "_buffers") if isinstance(x, torch.nn.Module) else ()
    for place in (own, *(own.get(kind, {}) for kind in kinds)):
        if name in place:
            return place[name]
    for base in type(x).__mro__ if not isinstance(x, type) else x.__mro__:
        if name in vars(base):
            found = vars(base)[name]
            return found.__func__ if isinstance(found, staticmethod) else found
    return _MISSING


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _MISSING


def _foreign(fn: types.FunctionType) -> bool:
    """Whether a function belongs to a library that knows nothing of the user's tensors."""
    file = fn.__code__.co_filename
    return file.startswith(_LIBRARIES) or (file.startswith(_STANDARD) and "-packages" not in file)


@functools.lru_cache(maxsize=4096)
def _chains(code: types.CodeType) -> tuple[Chain, ...]:
    """The names that code loads from outside, each with the attributes taken of it: ``self.net(y)`` gives self, net."""
    found: list[Chain] = []
    open_chain: tuple[bool, str, list[str]] | None = None

    def close() -> None:
        if open_chain is not None:
            found.append((open_chain[0], open_chain[1], tuple(open_chain[2])))

    for instruction in dis.get_instructions(code):
        kind, value = instruction.opname, instruction.argval
        if kind in ("LOAD_ATTR", "LOAD_METHOD") and open_chain is not None:
            open_chain[2].append(value)
        elif kind.startswith("LOAD_") and any(x in kind for x in ("FAST", "DEREF", "GLOBAL", "NAME")):
            for name in value if isinstance(value, tuple) else (value,):
                close()
                # A cell loaded as such is on its way to an inner function, whose own code is looked at below.
                cell = "FAST" in kind and name in (*code.co_cellvars, *code.co_freevars)
                open_chain = None if cell else ("GLOBAL" in kind or "NAME" in kind, name, [])
        elif kind not in ("PUSH_NULL", "CACHE"):
            close()
            open_chain = None
    close()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found.extend(_chains(constant))
    return tuple(dict.fromkeys(found))
