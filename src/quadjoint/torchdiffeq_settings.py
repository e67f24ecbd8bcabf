"""What torchdiffeq's options, tolerances and callbacks mean to quadjoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quadjoint.errors import nearest, warn_once
from quadjoint.gradient import ContinuousAdjoint, Gradient
from quadjoint.gradient.continuous.integral import InState
from quadjoint.solver.methods import catalogue
from quadjoint.solver.methods.catalogue import is_adaptive, known_options
from quadjoint.solver.state import Layout, State
from quadjoint.solver.structure import Structure

_NO_LIMIT = 2**31 - 1
_FIXED_HERE = ("trbdf2", "radauIIA5")  # torchdiffeq takes fixed steps of these; here they have an error estimate
_CALLBACKS = ("callback_step", "callback_accept_step", "callback_reject_step")


def options_of(
    method: str, options: dict[str, Any] | None, t: Any, *, y0: State, event_fn: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """torchdiffeq's options and defaults as quadjoint's."""
    if not isinstance(options, dict | None):
        raise TypeError(f"options must be a dict; got {type(options).__name__}.")
    options = _known_options(method, options or {})
    if method not in catalogue.METHODS or method == "scipy_solver":
        return options
    if _is_adaptive(method):
        # torchdiffeq counts the steps between two outputs.
        intervals = max(1, len(t) - 1) if isinstance(t, Tensor) else 1
        options["max_num_steps"] = options.get("max_num_steps", _NO_LIMIT) * intervals
        return options
    options.setdefault("interp", "linear")
    if method in _FIXED_HERE and options.get("step_size") is None and options.get("grid_constructor") is None:
        options["grid_constructor"] = lambda f, y, times: times
    construct = options.get("grid_constructor")
    if construct is not None and not isinstance(y0, Tensor):
        options["grid_constructor"] = _on_flat_states(construct, Layout.of(y0))
    if event_fn is not None:
        if options.get("step_size") is None:
            raise ValueError(f"event_fn with the fixed-step method {method!r} needs options['step_size'].")
        options.setdefault("max_num_steps", _NO_LIMIT)
    return options


def _on_flat_states(construct: Callable[..., Tensor], layout: Layout) -> Callable[..., Tensor]:
    """A constructor of grids that receives, as from torchdiffeq, a tuple state and its dynamics as one vector."""
    return lambda f, y, t: construct(lambda s, z: layout.pack(f(s, layout.unpack(z))), layout.pack(y), t)


def _is_adaptive(method: str) -> bool:
    return method not in _FIXED_HERE and is_adaptive(method)


def _known_options(method: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options that ``method`` has. A warning mentions the others, as torchdiffeq does; SciPy judges its own."""
    if method not in catalogue.METHODS:
        return dict(options)  # the solve will say what is wrong
    anywhere = {*known_options("dopri5"), *known_options("implicit_adams"), "solver", "grid_points", "eps"}
    if method == "scipy_solver":
        known = {*options} - anywhere | {"solver", "min_step", "max_step", "max_num_steps"}
    else:
        known = known_options(method)
        if not _is_adaptive(method):  # as in torchdiffeq
            known = known - (known_options("dopri5") - known_options("rk4")) - {"jump_t"}
    ignored = sorted({*options} - known)
    if ignored:
        misspelt = [name for name in ignored if name not in anywhere]
        hint = nearest(misspelt[0], known) if misspelt else ""
        warn_once(f"options {method} {ignored}", f"options {ignored} have no effect with method {method!r}.{hint}")
    return {name: value for name, value in options.items() if name in known}


def say_unjudged(func: Callable[..., Any], method: str) -> None:
    """Mention callbacks that see no decisions, because fixed steps are not judged and SciPy judges its own."""
    if method not in catalogue.METHODS or _is_adaptive(method):
        return
    silent = _CALLBACKS if method == "scipy_solver" else _CALLBACKS[1:]
    names = [name for name in silent if hasattr(func, name)]
    if names:
        message = (
            f"torchdiffeq never calls {', '.join(names)} with method {method!r}, whose steps it does not judge. Here "
            "every step that is taken counts as accepted, and none as rejected."
        )
        warn_once(f"callbacks {method} {names}", message)


def say_uncalled_backwards(func: Callable[..., Any]) -> None:
    names = [f"{name}_adjoint" for name in _CALLBACKS if hasattr(func, f"{name}_adjoint")]
    if names:
        message = (
            f"{', '.join(names)} will not be called: the backward pass has no callbacks. What it costs is counted in "
            "quadjoint.solve(...).stats.backward_evaluations."
        )
        warn_once(f"callbacks backwards {names}", message)


class Settings(NamedTuple):
    """Of a forward or a backward solve; None for what was not given."""

    rtol: Any
    atol: Any
    method: str | None
    options: dict[str, Any] | None


def with_settings(how: Gradient, y0: State, forward: Settings, backward: Settings) -> Gradient:
    """The gradient with the ``adjoint_`` settings of its backward solve; one that has none says that they are unused.

    What the gradient itself sets is left as it is.
    """
    other_method = backward.method not in (None, forward.method)
    if other_method and forward.options is not None and backward.options is None:
        raise ValueError(
            f"adjoint_method = {backward.method!r} differs from method = {forward.method!r}, so adjoint_options cannot "
            "be taken from options; give adjoint_options as well ({} for the defaults)."
        )
    if not isinstance(how, ContinuousAdjoint):
        given = {
            "adjoint_rtol": _differs(backward.rtol, forward.rtol),
            "adjoint_atol": _differs(backward.atol, forward.atol),
            "adjoint_method": other_method,
            "adjoint_options": bool(backward.options),
        }
        _say_unused(how, [name for name, differs in given.items() if differs])
        return how
    options = dict(backward.options or {})
    norm = options.pop("norm", None)
    options = _known_options(backward.method or forward.method or "dopri5", options)
    if norm == "seminorm":
        if isinstance(how.integral, InState):
            how = replace(how, integral=InState(seminorm=True), name="seminorm")
    elif norm is not None:
        if isinstance(how.integral, InState):
            options["norm"] = _adjoint_norm(norm, Layout.of(y0))
        else:
            _say_unused(how, ["adjoint_options['norm']"])
    return replace(
        how,
        rtol=_smallest(backward.rtol) if how.rtol is None else how.rtol,
        atol=_smallest(backward.atol) if how.atol is None else how.atol,
        method=(backward.method if other_method else None) if how.method is None else how.method,
        options=options or None if how.options is None else how.options,
    )


def _adjoint_norm(norm: Callable[..., Any], layout: Layout) -> Callable[..., Any]:
    """A norm written for torchdiffeq's backward state (dL/dt, *y, *dL/dy, *dL/dparameters)."""

    def wrapped(parts: tuple[Tensor, ...]) -> Any:
        y, a, *params = parts
        split = [part for x in (y, a) for part in layout.split(x)]
        return norm((y.new_zeros(()), *split, *params))

    return wrapped


def _say_unused(how: Gradient, names: list[str]) -> None:
    if names:
        warn_once(
            f"odeint_adjoint {how.name} {names}",
            f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect with gradient={how.name!r}, the "
            "gradient that odeint_adjoint uses here. For a backward solve with these settings pass gradient='adjoint'.",
        )


def tolerance_of(value: Any, y0: Any) -> Any:
    """Sequences hold one tolerance per tensor of a tuple state, or per entry of a tensor state."""
    if isinstance(value, Tensor) and value.ndim == 1 and not isinstance(y0, Tensor):
        return tuple(value)
    return torch.as_tensor(value) if isinstance(value, list | tuple) and isinstance(y0, Tensor) else value


def _differs(value: Any, other: Any) -> bool:
    """Whether a setting of the backward solve was given and is not that of the forward solve."""
    numbers = isinstance(value, int | float) and isinstance(other, int | float)
    return value is not None and value is not other and not (numbers and value == other)


def _smallest(value: Any) -> float | None:
    """The backward solve has one tolerance for all of its state."""
    return None if value is None else min(float(torch.as_tensor(v).min()) for v in Structure.of(value).flatten(value))
