"""From what the user gives to a solve: states as one tensor, times as numbers, a method with its options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.errors import warn_once
from quadjoint.solver.clocks import on_the_host
from quadjoint.solver.dynamics import Dynamics
from quadjoint.solver.independent.sample_observer import StepObserver
from quadjoint.solver.independent.samples import Samples
from quadjoint.solver.independent.setup import (
    check_batch,
    make_samples,
    refuse_batch_options,
    sample_norm,
    take_options,
)
from quadjoint.solver.integrate import Hooks
from quadjoint.solver.methods.catalogue import make_solver
from quadjoint.solver.methods.compiled import with_compiled_steps
from quadjoint.solver.observe import Observer, SampleObserver
from quadjoint.solver.progress import bar, sample_bar
from quadjoint.solver.spec import InitialValue, Method, Spec
from quadjoint.solver.state import Layout, State, check_not_empty, is_finite
from quadjoint.solver.structure import Structure
from quadjoint.solver.times import check_times, common_clock, fill_padding

EVENT_TOLERANCE = 1e-9  # of the step in which an event lies


@dataclass(frozen=True)
class Arranged:
    """A solve, its initial state as one tensor, and its times as they were given, padding filled."""

    spec: Spec
    y0: Tensor
    t: Tensor
    layout: Layout


def arrange(
    f: Callable[..., Any],
    y0: State,
    t: Tensor,
    *,
    method: Method,
    rtol: Any,
    atol: Any,
    options: dict[str, Any] | None,
    event_fn: Callable[..., Any] | None,
    compile: bool,
    exact_clock: bool,
    independent: bool = False,
    dense: bool = False,
    progress: bool = False,
) -> Arranged:
    """The solve that was asked for, or in words why it cannot be.

    ``exact_clock``: a fixed grid is to be differentiated in its times.
    """
    if not isinstance(options, dict | None):
        raise TypeError(f"options must be a dict; got {type(options).__name__}.")
    values = check_times(t)
    _check_state(y0)
    if not callable(f):
        raise TypeError(f"f must be callable as f(t, y); got {type(f).__name__}.")
    layout = Layout.of(y0, batched=independent or values.ndim == 2)
    if independent:
        check_batch(y0, layout)
    elif values.ndim == 2:
        _check_samples(layout.shapes or (y0.shape,), t, event_fn)  # type: ignore[union-attr]
    options = _options(options, layout)
    y = layout.pack(y0)
    rtol, atol = _check_tolerance("rtol", rtol, layout, y), _check_tolerance("atol", atol, layout, y)
    tolerance = float(options.pop("event_tol", EVENT_TOLERANCE))
    if not tolerance > 0.0:
        raise ValueError(f"options['event_tol'] must be positive; got {tolerance}.")
    horizon = options.pop("horizon", None)
    if horizon is not None and (independent or event_fn is None):
        why = "the last of the times t is the horizon of each sample" if independent else "it needs an event_fn"
        raise ValueError(f"options['horizon'] ends a solve in which steps are shared and no event comes; {why}.")
    if independent:
        clock = _own_steps(f, y, t, layout, method=method, options=options, events=event_fn is not None)
    elif values.ndim == 2:
        clock = _own_times(f, y, t, layout, method=method, options=options)
    else:
        refuse_batch_options(options)
        if event_fn is not None:
            t = _until(t, horizon)
            values = check_times(t)
        clock = _common_times(f, y, t, layout, times=values.tolist(), exact=exact_clock and event_fn is None)
    open_end = event_fn is not None and horizon is None and not independent
    problem = InitialValue(f, y, clock.solver_t, layout, open_end=open_end)
    solver = make_solver(method, options if clock.options is None else clock.options, problem, rtol=rtol, atol=atol)
    if not solver.judges_start or values.shape[-1] == 1 or independent:
        check_finite(y, layout)
    if solver.grid is None:
        _remark_on_precision(rtol, atol, y)
    if clock.samples is not None:
        solver = solver.with_settings(norm=sample_norm(options.get("norm"), layout))
    given = None if event_fn is None else clock.dynamics.lowered(event_fn)
    event = None if given is None else lambda s, state: given(s, layout.unpack(state))
    hooks = _hooks(f, layout)
    if progress:
        shown = bar(problem.times, hooks.on_accept) if clock.samples is None else None
        hooks = replace(hooks, on_accept=shown or sample_bar(clock.t.detach(), hooks.on_accept))
    spec = Spec(
        clock.dynamics,
        solver,
        clock.make_observer,
        event,
        tolerance,
        hooks,
        dense=dense,
        open_end=open_end,
        samples=clock.samples,
    )
    # A compiled graph cannot be transformed again.
    return Arranged(with_compiled_steps(spec) if compile and not private.is_transformed() else spec, y, clock.t, layout)


@dataclass(frozen=True)
class _Clock:
    """How the times of a solve become those of its steps."""

    t: Tensor  # as given, padding filled
    dynamics: Dynamics
    make_observer: Callable[[], Observer | SampleObserver | StepObserver]
    solver_t: Tensor  # the times of the steps
    options: dict[str, Any] | None = None  # for the method, if they differ from those given
    samples: Samples | None = None


def _common_times(
    f: Callable[..., Any], y: Tensor, t: Tensor, layout: Layout, *, times: list[float], exact: bool
) -> _Clock:
    points = t if private.is_differentiated(t) and exact else None
    # The steps up to an event are no function of the times given; gradients in them come from the flow.
    solver_t = t if points is not None else t.detach()
    return _Clock(t, Dynamics(f, y, layout), lambda: Observer(times, points), solver_t)


_UNIT = torch.tensor([0.0, 1.0], dtype=torch.float64)


def _own_times(
    f: Callable[..., Any],
    y: Tensor,
    t: Tensor,
    layout: Layout,
    *,
    method: Method,
    options: dict[str, Any],
) -> _Clock:
    """Times of each sample's own, steps that the batch shares."""
    refuse_batch_options(options)
    t = fill_padding(t)
    clock, options = common_clock(method, options, t, y)
    s, end = clock.inverse(on_the_host(t)), clock.end
    solver_t = torch.tensor([0.0, end], dtype=torch.float64)
    return _Clock(t, Dynamics(f, y, layout, clock), lambda: SampleObserver(s, end), solver_t, options)


def _own_steps(
    f: Callable[..., Any],
    y: Tensor,
    t: Tensor,
    layout: Layout,
    *,
    method: Method,
    options: dict[str, Any],
    events: bool,
) -> _Clock:
    """Steps of each sample's own."""
    t = t.expand(len(y), -1) if t.ndim == 1 else t
    _check_samples(layout.shapes or (y.shape,), t, None, columns=1)
    options, own = take_options(method, options, events=events)
    values, t = on_the_host(t), fill_padding(t)
    samples = make_samples(t, values, y, **own)
    dynamics = Dynamics(f, y, layout, per_sample=True)
    return _Clock(t, dynamics, lambda: StepObserver(samples), _UNIT, options, samples)


def _until(t: Tensor, horizon: Any) -> Tensor:
    """The initial time and the last one of a solve with an event; without a horizon that says the direction alone."""
    if len(t) != 2:
        raise ValueError(
            f"With event_fn, t holds the initial time and one later for the direction; got {len(t)} times."
        )
    if horizon is None:
        return t
    last = torch.as_tensor(horizon, dtype=None if isinstance(horizon, Tensor) else torch.float64)
    last = last.detach().to(t).reshape(())
    if not bool((last - t[0]) * (t[1] - t[0]) > 0.0):
        raise ValueError(f"options['horizon'] must lie past t[0] in the direction of t[1]; got {float(last):.6g}.")
    return torch.stack([t[0], last])


def _check_state(y0: Any) -> None:
    structure = Structure.of(y0)
    parts, names = structure.flatten(y0), structure.paths("y0")
    if not parts or (structure.kind is None and not isinstance(y0, Tensor)):
        got = type(y0).__name__ if parts else f"an empty {type(y0).__name__}"
        raise TypeError(f"y0 must be a tensor, or tensors in tuples, named tuples, lists or dicts; got {got}.")
    for name, part in zip(names, parts, strict=True):
        if not isinstance(part, Tensor):
            raise TypeError(f"y0 must hold tensors only; {name} is a {type(part).__name__}.")
        if not (part.is_floating_point() or part.is_complex()):
            raise TypeError(f"{name} must be floating point or complex; got {part.dtype}. Use {name}.float().")
        if part.dtype != parts[0].dtype or part.device != parts[0].device:
            raise TypeError(
                f"The tensors of y0 must share dtype and device; {name} is {part.dtype} on {part.device}, "
                f"{names[0]} is {parts[0].dtype} on {parts[0].device}."
            )


def check_finite(y: Tensor, layout: Layout) -> None:
    """Refuse an initial state, given as one tensor, whose entries are not all finite."""
    names = ["y0"] if layout.structure is None else layout.structure.paths("y0")
    for name, part in zip(names, layout.split(y), strict=True):
        if not is_finite(part):
            raise ValueError(f"{name} has entries that are NaN or infinite.")


def _options(options: dict[str, Any] | None, layout: Layout) -> dict[str, Any]:
    """A copy of the options in which a constructor of grids receives the state in its structure."""
    options = dict(options or {})
    construct = options.get("grid_constructor")
    if construct is not None and layout.shapes is not None:
        options["grid_constructor"] = lambda f, y, t: construct(f, layout.unpack(y), t)
    return options


def _check_samples(shapes: Sequence[torch.Size], t: Tensor, event_fn: Any, *, columns: int = 2) -> None:
    for shape in shapes:
        if len(shape) == 0 or shape[0] != t.shape[0]:
            raise ValueError(
                f"t has times for {t.shape[0]} samples; y0 must have that first dimension, got {tuple(shape)}."
            )
    check_not_empty(shapes, "t with times per sample")
    if event_fn is not None:
        raise ValueError("event_fn needs times shared by the batch, t of shape (2,).")
    if t.shape[1] < columns:
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
        if value.numel() <= 1:
            value = float(value) if value.numel() else 1.0  # a state without entries has no error
    else:
        value = float(value)
    worst = float(value.min()) if isinstance(value, Tensor) else value
    if not worst >= 0:
        raise ValueError(f"{name} must not be negative or NaN; got {worst}.")
    return value


def _remark_on_precision(rtol: Any, atol: Any, y: Tensor) -> None:
    """Tolerances that numbers of the state's precision cannot meet."""
    eps = torch.finfo(y.dtype).eps
    if isinstance(rtol, float) and isinstance(atol, float) and rtol < 0.5 * eps and atol < 0.5 * eps:
        warn_once(
            f"precision {y.dtype} {rtol} {atol}",
            f"rtol = {rtol:.1g} and atol = {atol:.1g} are below the resolution of {y.dtype}, {eps:.1g}: rounding is "
            "larger than the error that they ask for. Loosen them, or use a state of higher precision.",
        )


def _hooks(f: Callable[..., Any], layout: Layout) -> Hooks:
    """Callbacks are attributes of f, as in torchdiffeq; they receive (t0, y0, dt) with dt the step's length.

    If samples take steps of their own, t0 and dt have one number for each; after a step, dt is zero for those that were
    not accepted, or not rejected.
    """

    def adapt(callback: Any) -> Any:
        if callback is None:
            return None
        return lambda t, y, dt: callback(
            torch.as_tensor(t, dtype=torch.float64), layout.unpack(y), torch.as_tensor(abs(dt), dtype=torch.float64)
        )

    names = ("callback_step", "callback_accept_step", "callback_reject_step")
    return Hooks(*(adapt(getattr(f, name, None)) for name in names))
