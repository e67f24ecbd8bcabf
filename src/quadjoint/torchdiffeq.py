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
from typing import Any

import torch
from torch import Tensor

from quadjoint import ode
from quadjoint.gradient import Gradient, resolve
from quadjoint.gradient.first import Only
from quadjoint.solver.methods.catalogue import RUNGE_KUTTA
from quadjoint.solver.state import State
from quadjoint.solver.structure import Structure
from quadjoint.torchdiffeq_settings import (
    Settings,
    options_of,
    say_uncalled_backwards,
    say_unjudged,
    tolerance_of,
    with_settings,
)

__all__ = ["odeint", "odeint_adjoint", "odeint_dense", "odeint_event"]


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
    and there. SciPy's solvers cannot be backpropagated through; they get ``gradient="gq"``, collocation.

    >>> import torch
    >>> from quadjoint.torchdiffeq import odeint
    >>> odeint(lambda t, y: -y, torch.ones(3), torch.linspace(0, 1, 5)).shape
    torch.Size([5, 3])
    """
    method = method or "dopri5"
    how = "gq" if method == "scipy_solver" else "direct"
    return _solve(
        func, y0, t, rtol=rtol, atol=atol, method=method, options=options, event_fn=event_fn, gradient=resolve(how)
    )


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
    SciPy's solvers collocation ("gq"). Gradients are computed in ``adjoint_params`` alone if they are given, as in
    torchdiffeq.

    ``gradient`` selects any method of quadjoint; ``adjoint_rtol``, ``adjoint_atol``, ``adjoint_method`` and
    ``adjoint_options`` apply to those that solve backwards in time ("adjoint", "seminorm", "gq-paper").

    >>> import torch
    >>> from quadjoint.torchdiffeq import odeint_adjoint
    >>> w = torch.tensor(0.5, requires_grad=True)
    >>> odeint_adjoint(lambda t, y: -w * y, torch.ones(1), torch.tensor([0.0, 1.0]))[-1].sum().backward()
    >>> round(w.grad.item(), 5)
    -0.60653
    """
    method = method or "dopri5"
    how = resolve(
        gradient or ("discrete" if method in RUNGE_KUTTA else "gq" if method == "scipy_solver" else "adjoint")
    )
    forward = Settings(rtol, atol, method, options)
    how = with_settings(how, y0, forward, Settings(adjoint_rtol, adjoint_atol, adjoint_method, adjoint_options))
    say_uncalled_backwards(func)
    params = None if adjoint_params is None else Only(adjoint_params)
    return _solve(
        func,
        y0,
        t,
        rtol=rtol,
        atol=atol,
        method=method,
        options=options,
        event_fn=event_fn,
        gradient=how,
        params=params,
    )


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
    say_unjudged(func, method)
    return ode.solve(
        func,
        y0,
        t,
        rtol=tolerance_of(rtol, y0),
        atol=tolerance_of(atol, y0),
        method=method,
        gradient=how,
        options=options_of(method, options, t, y0=y0),
    )


def _solve(
    func: Callable[..., Any],
    y0: State,
    t: Tensor,
    *,
    rtol: Any,
    atol: Any,
    method: str,
    options: dict[str, Any] | None,
    event_fn: Callable[..., Any] | None,
    gradient: Gradient,
    params: tuple[Tensor, ...] | None = None,
) -> Any:
    if isinstance(t, Tensor) and t.ndim != 1:
        raise ValueError(f"t must be one dimensional; got shape {tuple(t.shape)}.")
    say_unjudged(func, method)
    return ode.odeint(
        func,
        y0,
        t,
        rtol=tolerance_of(rtol, y0),
        atol=tolerance_of(atol, y0),
        method=method,
        event_fn=event_fn,
        gradient=gradient,
        options=options_of(method, options, t, y0=y0, event_fn=event_fn),
        params=params,
    )


def _real(y0: Any) -> torch.dtype:
    return Structure.of(y0).flatten(y0)[0].dtype.to_real()
