"""odeint and solve: check the input, choose, delegate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quadjoint.errors import SolveError
from quadjoint.gradient import Gradient, resolve
from quadjoint.solution import Solution
from quadjoint.solver.dynamics import Dynamics, RandomnessCheck
from quadjoint.solver.integrate import EventWatch, Hooks, Observer, SampleObserver
from quadjoint.solver.methods.catalogue import make_solver
from quadjoint.solver.problem import Problem, find_parameters
from quadjoint.solver.state import Layout, State
from quadjoint.solver.times import (
    LinearMap,
    PiecewiseMap,
    check_times,
    event_time,
    fill_padding,
    fractions,
    sample_options,
    shift,
)  # fmt: skip
from quadjoint.solver.warm_start import WarmStart

Dynamical = Callable[..., Any]


def odeint(f: Dynamical, y0: State, t: Tensor, *, method: str = "dopri5", rtol: Any = 1e-3, atol: Any = 1e-6,
           gradient: str | Gradient = "auto", options: dict[str, Any] | None = None,
           event_fn: Dynamical | None = None, compile: bool = False,
           params: Sequence[Tensor] | None = None) -> Any:  # fmt: skip
    """Solve dy/dt = f(t, y), y(t[0]) = y0, and return the states at the times ``t``.

    Args:
        f: callable or module; receives t as a 0-d tensor and y like ``y0``.
        y0: tensor of any shape, or a tuple of tensors.
        t: times, strictly increasing or decreasing, shape (K,); or (B, K) with times for each sample of the batch
            (rows may be padded with NaN), in which case f receives t shaped to broadcast against y.
        method: "dopri5", "tsit5", "dopri8", "bosh3", "rk4" and others, see ``quadjoint.METHODS``.
        rtol, atol: tolerances of adaptive methods, numbers or, for a tuple state, one per tensor.
        gradient: "auto", "direct", "discrete", "gq", "gq-paper", "adjoint", "seminorm", "reversible" or an object.
        options: of the method, named as in torchdiffeq.
        event_fn: the solve ends where ``event_fn(t, y)`` changes sign; returns (event time, states).
        compile: run the steps under ``torch.compile``.
        params: tensors to differentiate in besides the parameters of a module; for any other callable, all of them.
            Where they are not given, those of a callable are found by one recorded evaluation and by reading its code;
            give them if it finds tensors by other ways than names and does not use them at t[0].

    Returns:
        States at ``t``, stacked along a new first dimension; a tuple of such for a tuple state.

    >>> import torch, quadjoint as qj
    >>> ys = qj.odeint(lambda t, y: -y, torch.ones(2), torch.tensor([0.0, 1.0]), rtol=1e-6)
    >>> bool(torch.allclose(ys[-1], torch.full((2,), 0.367879), atol=1e-5))
    True
    """
    _, solved = _solve(f, y0, t, method, rtol, atol, gradient, options, event_fn, compile, params, dense=False)
    return solved[0] if event_fn is None else (solved[1], solved[0])


def solve(f: Dynamical, y0: State, t: Tensor, *, method: str = "dopri5", rtol: Any = 1e-3, atol: Any = 1e-6,
          gradient: str | Gradient = "auto", options: dict[str, Any] | None = None,
          event_fn: Dynamical | None = None, compile: bool = False, params: Sequence[Tensor] | None = None,
          progress: bool = False) -> Solution:  # fmt: skip
    """As ``odeint``, returning a ``Solution`` with statistics and the continuous solution.

    ``progress=True`` shows a bar over integration time (needs tqdm).

    >>> import torch, quadjoint as qj
    >>> sol = qj.solve(lambda t, y: -y, torch.ones(()), torch.tensor([0.0, 2.0]), rtol=1e-6)
    >>> round(float(sol(1.0)), 5)
    0.36788
    >>> sol.stats.rejected_steps
    0
    """
    problem, (ys, event) = _solve(
        f,
        y0,
        t,
        method,
        rtol,
        atol,
        gradient,
        options,
        event_fn,
        compile,
        params,
        dense=True,
        progress=progress,
    )
    return Solution(t, ys, problem.stats, event, problem)


def _solve(f: Dynamical, y0: State, t: Tensor, method: str, rtol: Any, atol: Any, gradient: str | Gradient,
           options: dict[str, Any] | None, event_fn: Dynamical | None, compile: bool,
           params: Sequence[Tensor] | None, dense: bool, progress: bool = False,
           ) -> tuple[Problem, tuple[State, Tensor | None]]:  # fmt: skip
    _check_transforms()
    if not isinstance(options, dict | None):
        raise TypeError(f"options must be a dict; got {type(options).__name__}.")
    options = dict(options or {})
    how = resolve(gradient)
    values = check_times(t)
    _check_state(y0)
    if not callable(f):
        raise TypeError(f"f must be callable as f(t, y); got {type(f).__name__}.")
    per_sample = values.ndim == 2
    layout = Layout.of(y0, batched=per_sample)
    y = layout.pack(y0)
    if per_sample:
        _check_samples(y, t, layout, event_fn)
        t = fill_padding(t)
    rtol, atol = _check_tolerance("rtol", rtol, layout, y), _check_tolerance("atol", atol, layout, y)
    dynamics, observe, solver_t = _arrange(f, y, t, values, layout, how)
    if per_sample:
        options = sample_options(method, options, t, how.sample_times)
    times = solver_t.detach().to("cpu", torch.float64).tolist()
    # The steps up to an event are no function of the times given; gradients in them come from the flow.
    grid_t = solver_t if event_fn is None else solver_t.detach()
    solver = make_solver(method, options, rtol, atol, layout, grid_t, times, y, f)
    if event_fn is not None and len(times) != 2:
        raise ValueError(
            f"With event_fn, t holds the initial time and one later for the direction; got {len(times)} times."
        )
    problem = Problem(dynamics, solver, observe, dense=dense, compiled=compile)
    how = how.choose(problem, f, y, params)
    problem.hooks = _hooks(f, options, layout, progress, times)
    if compile:
        from quadjoint.solver.methods.compiled import compile_steps

        compile_steps(problem)
    unrecorded = method == "scipy_solver" and how.name == "direct"
    needed = how.name != "direct" or unrecorded or t.requires_grad
    if torch.is_grad_enabled() and needed and (params is not None or not problem.params):
        problem.params = find_parameters(f, dynamics, times[0], y, params)
    if unrecorded and torch.is_grad_enabled() and (y.requires_grad or t.requires_grad or problem.params):
        raise ValueError(
            "gradient='direct' cannot record the steps of method 'scipy_solver'; use gradient='gq' or 'adjoint', "
            "or solve under torch.no_grad()."
        )
    if event_fn is not None:
        problem.event = lambda s, state: event_fn(s, layout.unpack(state))
    with WarmStart(problem, f, options):
        check = RandomnessCheck(y.device)
        try:
            ys, event = _differentiable_in_times(problem, how, y, t, per_sample)
        except SolveError as error:
            if check.found(dynamics, times[0], y):
                raise type(error)(f"{RandomnessCheck.ADVICE} The solve ended with: {error}") from None
            raise
        if how.name != "direct" and ys.requires_grad and check.found(dynamics, times[0], y):
            raise ValueError(RandomnessCheck.ADVICE)
    return problem, (layout.unpack(ys, leading=1), event)


def _arrange(f: Dynamical, y: Tensor, t: Tensor, values: Any, layout: Layout, how: Gradient,
             ) -> tuple[Dynamics, Callable[[], Observer | SampleObserver], Tensor]:  # fmt: skip
    """Dynamics, observer and times as the solver sees them, for shared times or times per sample."""
    if values.ndim == 1:
        times = values.tolist()
        points = t if t.requires_grad and how.exact_clock else None
        return Dynamics(f, y, layout), lambda: Observer(times, points), t
    if how.sample_times == "interpolate":
        s = fractions(values)
        dynamics = Dynamics(f, y, layout, LinearMap(t, y))
        return dynamics, lambda: SampleObserver(s), torch.linspace(0.0, 1.0, values.shape[1], dtype=torch.float64)
    count = torch.arange(values.shape[1], dtype=torch.float64)
    return Dynamics(f, y, layout, PiecewiseMap(t, y)), lambda: Observer(count.tolist()), count


def _differentiable_in_times(problem: Problem, how: Gradient, y: Tensor, t: Tensor, per_sample: bool,
                             ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Solve; gradients in the times come from the flow at the observations, unless a fixed grid carries them."""
    learnable = t.requires_grad and torch.is_grad_enabled()
    by_flow = learnable and not (how.exact_clock and problem.solver.points is not None)
    if by_flow:
        y = shift(problem.f, y, t[:, 0] if per_sample else t[0], -1.0, problem.params)
    ys = how.apply(problem, y)
    event = None
    if problem.event is not None:
        assert problem.event_time is not None
        signs = EventWatch(problem.event, problem.f, problem.times[0], y).signs
        event = event_time(problem.f, problem.event, signs, problem.event_time, ys[-1], t.detach())
        t = torch.stack([t[0], event])
        by_flow = event.requires_grad or by_flow
    if by_flow:
        ys = shift(problem.f, ys, t.T if per_sample else t, 1.0, problem.params)
    return ys, event


def _check_transforms() -> None:
    """Steps are chosen on the host from the numbers of the solve, which a transform of torch.func keeps to itself."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise ValueError(
            "odeint cannot run inside torch.func.vmap, grad, jvp or the like. Instead of vmap, give y0 the batch "
            "dimension; instead of grad, use torch.autograd.grad (with create_graph=True for higher derivatives)."
        )


def _check_state(y0: Any) -> None:
    parts = (y0,) if isinstance(y0, Tensor) else y0
    if not isinstance(parts, tuple) or not parts or not all(isinstance(p, Tensor) for p in parts):
        raise TypeError(f"y0 must be a tensor or a non-empty tuple of tensors; got {type(y0).__name__}.")
    for i, part in enumerate(parts):
        name = "y0" if isinstance(y0, Tensor) else f"y0[{i}]"
        if not (part.is_floating_point() or part.is_complex()):
            raise TypeError(f"{name} must be floating point or complex; got {part.dtype}. Use {name}.float().")
        if part.dtype != parts[0].dtype or part.device != parts[0].device:
            raise TypeError(
                f"The tensors of y0 must share dtype and device; {name} is {part.dtype} on {part.device}, "
                f"y0[0] is {parts[0].dtype} on {parts[0].device}."
            )
        if not bool(torch.isfinite(part).all()):
            raise ValueError(f"{name} has entries that are NaN or infinite.")


def _check_samples(y: Tensor, t: Tensor, layout: Layout, event_fn: Any) -> None:
    shapes = layout.shapes or (y.shape,)
    if any(len(s) == 0 or s[0] != t.shape[0] for s in shapes):
        raise ValueError(
            f"t has times for {t.shape[0]} samples; y0 must have that first dimension, got {tuple(shapes[0])}."
        )
    if event_fn is not None:
        raise ValueError("event_fn needs times shared by the batch, t of shape (2,).")
    if t.shape[1] < 2:
        raise ValueError("Times per sample need at least two columns.")


def _check_tolerance(name: str, value: Any, layout: Layout, y: Tensor) -> Any:
    if isinstance(value, Tensor) and value.requires_grad:
        raise ValueError(f"{name} cannot require grad.")
    value = layout.tolerance(name, value)
    if isinstance(value, Tensor):
        pairs = zip(value.shape[::-1], y.shape[::-1], strict=False)
        if value.ndim > max(1, y.ndim) or any(n not in (1, size) for n, size in pairs):
            raise ValueError(f"{name} has shape {tuple(value.shape)}, but the state has shape {tuple(y.shape)}.")
        value = value.detach().to(y.device, y.dtype.to_real())
        if value.numel() == 1:
            value = float(value)
    worst = float(value.min()) if isinstance(value, Tensor) else float(value)
    if not worst >= 0:
        raise ValueError(f"{name} must not be negative or NaN; got {worst}.")
    return value


def _hooks(f: Dynamical, options: dict[str, Any], layout: Layout, progress: bool, times: list[float]) -> Hooks:
    """Callbacks are attributes of f, as in torchdiffeq; they receive (t0, y0, dt) with dt the step's length."""

    def adapt(callback: Any) -> Any:
        if callback is None:
            return None
        return lambda t, y, dt: callback(
            torch.tensor(t, dtype=torch.float64), layout.unpack(y), torch.tensor(abs(dt), dtype=torch.float64)
        )

    hooks = Hooks(*(adapt(getattr(f, f"callback_{name}", None)) for name in ("step", "accept_step", "reject_step")))
    if progress:
        from quadjoint.solver.progress import bar

        hooks = replace(hooks, on_accept=bar(times, hooks.on_accept))
    return hooks
