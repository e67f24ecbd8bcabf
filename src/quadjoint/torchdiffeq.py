"""torchdiffeq's interface on quadjoint's solvers and gradients.

A program written for torchdiffeq 0.2 runs with one line changed::

    from quadjoint.torchdiffeq import odeint, odeint_adjoint, odeint_event, odeint_dense

Signatures, option names, defaults and shapes are torchdiffeq's. What differs: bad input is refused in words,
gradients flow through event times by themselves, parameters of plain callables are found, and ``odeint_adjoint``
differentiates Runge-Kutta solves exactly instead of solving a second ODE. Options and callbacks that a method does not
have are ignored with a warning, as in torchdiffeq.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quadjoint import ode
from quadjoint.errors import nearest, warn_once
from quadjoint.gradient import ContinuousAdjoint, Gradient, resolve
from quadjoint.gradient.continuous.integral import InState
from quadjoint.gradient.first import Only
from quadjoint.solver.methods import catalogue
from quadjoint.solver.methods.catalogue import RUNGE_KUTTA, known_options
from quadjoint.solver.state import Layout, State
from quadjoint.solver.structure import Structure

__all__ = ["odeint", "odeint_adjoint", "odeint_dense", "odeint_event"]

_NO_LIMIT = 2**31 - 1
_CALLBACKS = ("callback_step", "callback_accept_step", "callback_reject_step")


def odeint(
    func: Callable[..., Any],
    y0: State,
    t: Tensor,
    *,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    method: str | None = None,
    options: dict[str, Any] | None = None,
    event_fn: Callable[..., Any] | None = None,
) -> Any:
    """Solve dy/dt = func(t, y) from y(t[0]) = y0; gradients by backpropagation through the solver.

    Returns the states at ``t``, or with ``event_fn`` the time of its first change of sign and the states at the start
    and there. SciPy's solvers cannot be backpropagated through; they get the quadrature adjoint.

    >>> import torch
    >>> from quadjoint.torchdiffeq import odeint
    >>> odeint(lambda t, y: -y, torch.ones(3), torch.linspace(0, 1, 5)).shape
    torch.Size([5, 3])
    """
    method = method or "dopri5"
    how = "gq" if method == "scipy_solver" else "direct"
    return _solve(func, y0, t, rtol, atol, method, options, event_fn, resolve(how), None)


def odeint_adjoint(
    func: Callable[..., Any],
    y0: State,
    t: Tensor,
    *,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    method: str | None = None,
    options: dict[str, Any] | None = None,
    event_fn: Callable[..., Any] | None = None,
    adjoint_rtol: Any = None,
    adjoint_atol: Any = None,
    adjoint_method: str | None = None,
    adjoint_options: dict[str, Any] | None = None,
    adjoint_params: Iterable[Tensor] | None = None,
    gradient: str | Gradient | None = None,
) -> Any:
    """As ``odeint``, with gradients in little memory.

    Runge-Kutta solves are differentiated by their exact transpose (``gradient="discrete"``), which solves no second
    ODE: the ``adjoint_`` settings have no effect then, which is said once. Multistep methods get the adjoint method,
    SciPy's solvers the quadrature adjoint.
    Gradients are computed in ``adjoint_params`` alone where they are given, as in torchdiffeq.
    ``gradient`` selects any method of quadjoint; ``adjoint_rtol``, ``adjoint_atol``, ``adjoint_method`` and
    ``adjoint_options`` apply to those that solve backwards in time ("adjoint", "seminorm", "gq", "gq-paper").

    >>> import torch
    >>> from quadjoint.torchdiffeq import odeint_adjoint
    >>> w = torch.tensor(0.5, requires_grad=True)
    >>> odeint_adjoint(lambda t, y: -w * y, torch.ones(1), torch.tensor([0.0, 1.0]))[-1].sum().backward()
    >>> round(w.grad.item(), 5)
    -0.60653
    """
    method = method or "dopri5"
    if adjoint_method not in (None, method) and options is not None and adjoint_options is None:
        raise ValueError(
            f"adjoint_method = {adjoint_method!r} differs from method = {method!r}, so adjoint_options cannot be taken "
            "from options; give adjoint_options as well ({} for the defaults)."
        )
    how = resolve(
        gradient or ("discrete" if method in RUNGE_KUTTA else "gq" if method == "scipy_solver" else "adjoint")
    )
    told = {
        "adjoint_rtol": _differs(adjoint_rtol, rtol),
        "adjoint_atol": _differs(adjoint_atol, atol),
        "adjoint_method": adjoint_method not in (None, method),
        "adjoint_options": bool(adjoint_options),
    }
    if isinstance(how, ContinuousAdjoint):
        how = _with_settings(
            how,
            y0,
            rtol=adjoint_rtol,
            atol=adjoint_atol,
            forward_method=method,
            method=adjoint_method or method,
            options=adjoint_options,
        )
    else:
        _say_unused(how, [name for name, differs in told.items() if differs])
    _say_uncalled_backwards(func)
    params = None if adjoint_params is None else Only(adjoint_params)
    return _solve(func, y0, t, rtol, atol, method, options, event_fn, how, params)


def odeint_event(
    func: Callable[..., Any],
    y0: State,
    t0: Tensor,
    *,
    event_fn: Callable[..., Any],
    reverse_time: bool = False,
    odeint_interface: Callable[..., Any] = odeint,
    **kwargs: Any,
) -> tuple[Tensor, State]:
    """Solve until ``event_fn(t, y)`` changes sign; returns its time and the states at the start and there.

    The time is differentiable in whatever it depends on (implicit function theorem), and so is the state.

    >>> import torch
    >>> from quadjoint.torchdiffeq import odeint_event
    >>> t, ys = odeint_event(lambda t, y: -y, torch.ones(1), torch.tensor(0.0), event_fn=lambda t, y: y - 0.5)
    >>> round(float(t), 4)  # log 2
    0.6931
    """
    start = torch.as_tensor(t0, dtype=_real(y0) if not isinstance(t0, Tensor) else None).reshape(())
    towards = start.detach() + (-1.0 if reverse_time else 1.0)
    event_t, solution = odeint_interface(func, y0, torch.stack([start, towards]), event_fn=event_fn, **kwargs)
    return event_t, solution


def odeint_dense(
    func: Callable[..., Any],
    y0: State,
    t0: Tensor | float,
    t1: Tensor | float,
    *,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    method: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[[Tensor], State]:
    """The solution from ``t0`` to ``t1`` as a function of time, for any method and state.

    >>> import torch
    >>> from quadjoint.torchdiffeq import odeint_dense
    >>> y = odeint_dense(lambda t, y: -y, torch.ones(()), torch.tensor(0.0), torch.tensor(2.0))
    >>> round(float(y(torch.tensor(1.0))), 5)
    0.36788
    """
    ends = [torch.as_tensor(x, dtype=torch.float64).detach().reshape(()) for x in (t0, t1)]
    method = method or "dopri5"
    t = torch.stack(ends)
    how = "gq" if method == "scipy_solver" else "direct"
    _say_unjudged(func, method)
    return ode.solve(
        func,
        y0,
        t,
        rtol=_tolerance(rtol, y0),
        atol=_tolerance(atol, y0),
        method=method,
        gradient=how,
        options=_options(method, options, t, y0=y0),
    )


def _solve(
    func: Callable[..., Any],
    y0: State,
    t: Tensor,
    rtol: Any,
    atol: Any,
    method: str,
    options: dict[str, Any] | None,
    event_fn: Callable[..., Any] | None,
    how: Gradient,
    params: tuple[Tensor, ...] | None,
) -> Any:
    if isinstance(t, Tensor) and t.ndim != 1:
        raise ValueError(f"t must be one dimensional; got shape {tuple(t.shape)}.")
    _say_unjudged(func, method)
    return ode.odeint(
        func,
        y0,
        t,
        rtol=_tolerance(rtol, y0),
        atol=_tolerance(atol, y0),
        method=method,
        event_fn=event_fn,
        gradient=how,
        options=_options(method, options, t, y0=y0, event_fn=event_fn),
        params=params,
    )


def _options(
    method: str, options: dict[str, Any] | None, t: Any, *, y0: State, event_fn: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """torchdiffeq's options and defaults as quadjoint's."""
    if not isinstance(options, dict | None):
        raise TypeError(f"options must be a dict; got {type(options).__name__}.")
    options = _known(method, options or {})
    if method not in catalogue.METHODS or method == "scipy_solver":
        return options
    if _is_adaptive(method):
        # torchdiffeq counts the steps between two outputs.
        intervals = max(1, len(t) - 1) if isinstance(t, Tensor) else 1
        options["max_num_steps"] = options.get("max_num_steps", _NO_LIMIT) * intervals
        return options
    options.setdefault("interp", "linear")
    construct = options.get("grid_constructor")
    if construct is not None and not isinstance(y0, Tensor):
        options["grid_constructor"] = _on_flat_states(construct, Layout.of(y0))
    if event_fn is not None and options.get("step_size") is None:
        raise ValueError(f"event_fn with the fixed-step method {method!r} needs options['step_size'].")
    return options


def _on_flat_states(construct: Callable[..., Tensor], layout: Layout) -> Callable[..., Tensor]:
    """A constructor of grids that receives, as from torchdiffeq, a tuple state and its dynamics as one vector."""
    return lambda f, y, t: construct(lambda s, z: layout.pack(f(s, layout.unpack(z))), layout.pack(y), t)


def _is_adaptive(method: str) -> bool:
    return method == "alf" or (method in RUNGE_KUTTA and RUNGE_KUTTA[method].adaptive)


def _known(method: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options that ``method`` has. A warning mentions the others, as torchdiffeq does; SciPy judges its own."""
    if method not in catalogue.METHODS:
        return dict(options)  # the solve will say what is wrong
    anywhere = {*known_options("dopri5"), *known_options("implicit_adams"), "solver", "grid_points", "eps"}
    if method == "scipy_solver":
        known = {*options} - anywhere | {"solver", "min_step", "max_step", "max_num_steps"}
    else:
        known = known_options(method)
    ignored = sorted({*options} - known)
    if ignored:
        misspelt = [name for name in ignored if name not in anywhere]
        hint = nearest(misspelt[0], known) if misspelt else ""
        warn_once(f"options {method} {ignored}", f"options {ignored} have no effect with method {method!r}.{hint}")
    return {name: value for name, value in options.items() if name in known}


def _say_unjudged(func: Callable[..., Any], method: str) -> None:
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


def _say_uncalled_backwards(func: Callable[..., Any]) -> None:
    names = [f"{name}_adjoint" for name in _CALLBACKS if hasattr(func, f"{name}_adjoint")]
    if names:
        message = (
            f"{', '.join(names)} will not be called: the backward pass has no callbacks. What it costs is counted in "
            "quadjoint.solve(...).stats.backward_evaluations."
        )
        warn_once(f"callbacks backwards {names}", message)


def _with_settings(
    how: ContinuousAdjoint,
    y0: State,
    *,
    rtol: Any,
    atol: Any,
    forward_method: str,
    method: str,
    options: dict[str, Any] | None,
) -> ContinuousAdjoint:
    """A gradient that solves backwards, with the settings that it leaves open taken from the ``adjoint_`` arguments."""
    options = dict(options or {})
    norm = options.pop("norm", None)
    options = _known(method, options)
    if norm == "seminorm":
        if isinstance(how.integral, InState):
            how = replace(how, integral=InState(seminorm=True), name="seminorm")
    elif norm is not None:
        if isinstance(how.integral, InState):
            options["norm"] = _adjoint_norm(norm, Layout.of(y0))
        else:
            _say_unused(how, ["adjoint_options['norm']"])
    other_method = None if method == forward_method else method
    return replace(
        how,
        rtol=_smallest(rtol) if how.rtol is None else how.rtol,
        atol=_smallest(atol) if how.atol is None else how.atol,
        method=other_method if how.method is None else how.method,
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


def _tolerance(value: Any, y0: Any) -> Any:
    """Sequences hold one tolerance per tensor of a tuple state, or per entry of a tensor state."""
    return torch.as_tensor(value) if isinstance(value, list | tuple) and isinstance(y0, Tensor) else value


def _differs(value: Any, other: Any) -> bool:
    """Whether a setting of the backward solve was given and is not that of the forward solve."""
    numbers = isinstance(value, int | float) and isinstance(other, int | float)
    return value is not None and value is not other and not (numbers and value == other)


def _smallest(value: Any) -> float | None:
    """The backward solve has one tolerance for all of its state."""
    return None if value is None else min(float(torch.as_tensor(v).min()) for v in Structure.of(value).flatten(value))


def _real(y0: Any) -> torch.dtype:
    return Structure.of(y0).flatten(y0)[0].dtype.to_real()
