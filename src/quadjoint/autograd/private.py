"""Every name of torch that is not documented, and what the library does without it.

Each function looks its name up when it is called and falls back to the careful answer if torch no longer has it, so
that a rename costs speed or a clearer message, never a result. ``tests/autograd/test_private.py`` removes each name.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

Function = TypeVar("Function", bound=Callable[..., Any])


def _lookup(*path: str) -> Any:
    """An attribute of an attribute of torch, or None."""
    found: Any = torch
    for name in path:
        found = getattr(found, name, None)
        if found is None:
            return None
    return found


def inside_transform() -> bool:
    """Whether vmap, grad, jvp or the like of torch.func is running. Without the name: taken for not running."""
    peek = _lookup("_C", "_functorch", "peek_interpreter_stack")
    return peek is not None and peek() is not None


def inside_forward_mode() -> bool:
    """Whether tangents are carried along, by torch.func.jvp or within ``forward_ad.dual_level``.

    Without the name: such levels cannot be nested, so that another is tried.
    """
    level = _lookup("autograd", "forward_ad", "_current_level")
    if level is not None:
        return bool(level >= 0)
    try:
        with forward_ad.dual_level():
            return False
    except RuntimeError:
        return True


def is_transformed() -> bool:
    """Whether torch.func or forward mode differentiates or maps what is computed now."""
    return inside_transform() or inside_forward_mode()


def is_differentiated(x: Tensor) -> bool:
    """Whether a derivative in ``x`` is computed, by backpropagation or by any transform that is running.

    A transform wraps what it differentiates in, but constants too, so that each is asked, the innermost first. Without
    the names: taken for differentiated, which costs evaluations only.
    """
    if x.requires_grad or forward_ad.unpack_dual(x).tangent is not None:
        return True
    if not inside_transform():
        return False
    names = ("peek_interpreter_stack", "get_unwrapped", "maybe_get_level")
    peek, unwrap, level_of = (_lookup("_C", "_functorch", name) for name in names)
    outside = _lookup("_functorch", "pyfunctorch", "temporarily_pop_interpreter_stack")
    if None in (peek, unwrap, level_of, outside):
        return True
    inner = unwrap(x) if level_of(x) == peek().level() else x
    with outside():
        return is_differentiated(inner)


def graph_is_kept() -> bool:
    """Whether the running backward pass retains its graph. Without the name: it does, and nothing is freed early."""
    ask = _lookup("_C", "_autograd", "_get_current_graph_task_keep_graph")
    return True if ask is None else bool(ask())


def backward_pass() -> int | None:
    """The number of the running backward pass. Without the name: None, which equals no number that was noted."""
    ask = _lookup("_C", "_current_graph_task_id")
    return None if ask is None else int(ask())


def saved_tensors_are_watched() -> bool:
    """Whether hooks (a checkpoint, offloading) receive what autograd saves. Without the name: taken for not so.

    While torch.compile traces, they receive what the graph will save as a whole.
    """
    if torch.compiler.is_compiling():
        return False
    top = _lookup("_C", "_autograd", "_top_saved_tensors_default_hooks")
    return top is not None and top(True) is not None


def version(x: Tensor) -> int:
    """How often ``x`` was changed in place, 0 if torch does not count. Without the name: changes go unnoticed."""
    try:
        return x._version
    except (RuntimeError, AttributeError):  # torch does not count changes of tensors of the inference mode
        return 0


def has_hooks(x: Tensor) -> bool:
    """Whether gradients of ``x`` are watched. Without the name: taken for watched, which costs time only."""
    return bool(getattr(x, "_backward_hooks", True))


def has_module_hooks(module: nn.Module) -> bool:
    """Whether a module watches its backward pass. Without the names: taken for not so."""
    return bool(getattr(module, "_backward_hooks", None) or getattr(module, "_backward_pre_hooks", None))


# Dictionaries of every module whose entries modules() and tensor_tables() go through. Renamed, they are searched twice.
TABLES = frozenset({"_modules", "_parameters", "_buffers"})


def tensor_tables(module: nn.Module) -> Iterator[MutableMapping[str, Any]]:
    """The dictionaries in which a module's parameters, buffers and other attributes lie.

    Without the first two, only what is an ordinary attribute is seen.
    """
    for name in ("_parameters", "_buffers"):
        table = module.__dict__.get(name)
        if table:
            yield table
    yield module.__dict__


def is_sharded(module: nn.Module) -> bool:
    """Whether ``fully_shard`` was applied to a module. Without the name: taken for not so."""
    if "torch.distributed.fsdp" not in sys.modules:
        return False
    kind = _lookup("distributed", "fsdp", "FSDPModule")
    return kind is not None and isinstance(module, kind)


def keep_buffers() -> AbstractContextManager[Any]:
    """Compile, or run, backward passes that leave the memory of the forward pass as it is, so that they can run again.

    torch looks at this setting at both times. Without the name: torch's own error if such a pass runs twice.
    """
    if "torch._dynamo" not in sys.modules:
        return nullcontext()  # nothing was compiled
    try:
        from torch._functorch import config
    except ImportError:
        return nullcontext()
    return config.patch(donated_buffer=False) if hasattr(config, "donated_buffer") else nullcontext()


def is_reentrant_checkpoint(node: Any) -> bool:
    """Whether a node is a checkpoint that only ``backward()`` can pass."""
    return "CheckpointFunction" in node.name()


def compile_with_inductor(graph: Any, inputs: Any, settings: dict[str, Any]) -> Any:
    """torch's compiler with settings of its own. Without the name: an ImportError, and the solve is not compiled."""
    from torch._inductor.compile_fx import compile_fx

    with keep_buffers():
        return compile_fx(graph, inputs, config_patches=settings)


def tracing() -> AbstractContextManager[Any]:
    """Settings under which steps are traced.

    Integers of modules (counters of evaluations) become inputs of a graph and not constants, and it is an error if
    torch gives up, having compiled a function too often. Without the names: torch compiles anew whenever such an
    integer has changed, and only logs that it gives up.
    """
    try:
        from torch._dynamo import config
    except ImportError:
        return nullcontext()
    wanted = {"allow_unspec_int_on_nn_module": True, "fail_on_recompile_limit_hit": True}
    found = {name: value for name, value in wanted.items() if hasattr(config, name)}
    return config.patch(found) if found else nullcontext()


def is_recompile_limit(error: BaseException) -> bool:
    """Whether torch has given up compiling. Without the name: taken for another reason."""
    return "RecompileLimit" in type(error).__name__


def outside_of_compile(function: Function) -> Function:
    """Let ``torch.compile`` step out of its graph around ``function`` and all that it calls.

    As ``torch.compiler.disable`` does, which would import the compiler. Without the name: torch steps out of the graph
    while it traces.
    """
    disabled: list[Any] = []

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return cast(Function, call)


@contextmanager
def replaced(entries: list[tuple[MutableMapping[str, Any], str, Any]]) -> Iterator[None]:
    """Put values into tables of modules for a while."""
    before = [(table, name, table.get(name)) for table, name, _ in entries]
    for table, name, value in entries:
        table[name] = value
    try:
        yield
    finally:
        for table, name, value in before:
            table[name] = value
