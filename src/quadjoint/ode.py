"""odeint and solve: check the input, arrange the solve, choose the gradient, solve."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quadjoint.arrange import Arranged, arrange, check_finite
from quadjoint.autograd import private
from quadjoint.autograd.captured import Snapshot, without_autocast
from quadjoint.conclude import Solved, conclude
from quadjoint.errors import SolveError
from quadjoint.gradient import Gradient, resolve
from quadjoint.gradient.base import Outcome, Part, Task
from quadjoint.gradient.choose.auto import Auto
from quadjoint.gradient.direct import Direct
from quadjoint.gradient.first import First, Only, StartedDynamics
from quadjoint.gradient.flow import Flow, shift
from quadjoint.solution import Solution
from quadjoint.solver.randomness import RandomnessCheck
from quadjoint.solver.spec import Method
from quadjoint.solver.state import State
from quadjoint.solver.stats import Stats

Dynamical = Callable[..., Any]
HIDDEN = (
    "Inside torch.func.vmap the numbers of a solve are hidden, but adaptive steps, events and iterations are chosen by "
    "them (and f must not look at its input either). Take fixed steps, such as method='rk4' with "
    "options={'step_size': ...}; or, instead of vmap, give y0 the batch as its first dimension."
)
logger = logging.getLogger("quadjoint")


@private.outside_of_compile
def odeint(
    f: Dynamical,
    y0: State,
    t: Tensor,
    *,
    method: Method = "dopri5",
    rtol: Any = 1e-3,
    atol: Any = 1e-6,
    gradient: str | Gradient = "auto",
    options: dict[str, Any] | None = None,
    event_fn: Dynamical | None = None,
    independent: bool = False,
    compile: bool = False,
    params: Sequence[Tensor] | None = None,
) -> Any:
    """Solve dy/dt = f(t, y), y(t[0]) = y0, and return the states at the times ``t``.

    Args:
        f: callable or module; receives t as a 0-d tensor and y like ``y0``.
        y0: tensor of any shape, or tensors in tuples, named tuples, lists or dicts, nested in any way; f receives and
            returns the same structure, as do ``event_fn``, callbacks and a norm of your own.
        t: times, strictly increasing or decreasing, shape (K,); or (B, K) with times for each sample of the batch
            (rows may be padded with NaN), in which case f receives t shaped to broadcast against y.
        method: "dopri5", "tsit5", "dopri8", "bosh3", "rk4" and others, see ``quadjoint.METHODS``; a `ButcherTableau`,
            or a `Stepper` of your own.
        rtol, atol: tolerances of adaptive methods: numbers, or tensors that broadcast against the state; for a state
            of several tensors also one of these for each, in its structure.
        gradient: "auto", "direct", "discrete", "gq", "gq-paper", "adjoint", "seminorm", "reversible" or an object.
        options: of the method, named as in torchdiffeq; ``event_tol`` is the accuracy of an event's time, relative to
            the step in which it lies.
        event_fn: the solve ends where ``event_fn(t, y)`` changes sign; returns (event time, states).
        independent: every sample of the first dimension takes steps of its own and ends by itself: at its last time, at
            an event of its own, or where it fails. f receives t shaped to broadcast against y.
        compile: run the steps under ``torch.compile``.
        params: tensors to differentiate in besides the parameters of a module and those that f uses at t[0], which
            are found. A tensor that f uses only later must be named.

    Returns:
        States at ``t``, stacked along a new first dimension, in the structure of ``y0``.

    >>> import torch, quadjoint as qj
    >>> ys = qj.odeint(lambda t, y: -y, torch.ones(2), torch.tensor([0.0, 1.0]), rtol=1e-6)
    >>> bool(torch.allclose(ys[-1], torch.full((2,), 0.367879), atol=1e-5))
    True
    """
    how = resolve(gradient)
    arranged = arrange(
        f,
        y0,
        t,
        method=method,
        rtol=rtol,
        atol=atol,
        options=options,
        event_fn=event_fn,
        compile=compile,
        exact_clock=how.exact_clock,
        independent=independent,
    )
    solved = _solve(arranged, how, params)
    return solved.ys if event_fn is None else (solved.event_time, solved.ys)


@private.outside_of_compile
def solve(
    f: Dynamical,
    y0: State,
    t: Tensor,
    *,
    method: Method = "dopri5",
    rtol: Any = 1e-3,
    atol: Any = 1e-6,
    gradient: str | Gradient = "auto",
    options: dict[str, Any] | None = None,
    event_fn: Dynamical | None = None,
    independent: bool = False,
    compile: bool = False,
    params: Sequence[Tensor] | None = None,
    progress: bool = False,
) -> Solution:
    """As ``odeint``, returning a ``Solution`` with statistics and the continuous solution.

    ``progress=True`` shows a bar over integration time (needs tqdm). How samples ended that are solved with
    ``independent=True`` is in ``status``.

    >>> import torch, quadjoint as qj
    >>> sol = qj.solve(lambda t, y: -y, torch.ones(()), torch.tensor([0.0, 2.0]), rtol=1e-6)
    >>> round(float(sol(1.0)), 5)
    0.36788
    >>> sol.stats.rejected_steps
    0
    """
    how = resolve(gradient)
    arranged = arrange(
        f,
        y0,
        t,
        method=method,
        rtol=rtol,
        atol=atol,
        options=options,
        event_fn=event_fn,
        compile=compile,
        exact_clock=how.exact_clock,
        independent=independent,
        dense=True,
        progress=progress,
    )
    solved = _solve(arranged, how, params)
    return Solution(solved, arranged.layout)


def _solve(arranged: Arranged, how: Gradient, params: Sequence[Tensor] | None) -> Solved:
    """Choose how to differentiate, and solve; under autocast only f runs in lower precision."""
    with without_autocast(arranged.y0.device.type):
        return _run(arranged, how, params)


def _run(arranged: Arranged, how: Gradient, params: Sequence[Tensor] | None) -> Solved:
    spec, y, t = arranged.spec, arranged.y0, arranged.t
    transformed = private.is_transformed()
    complete = isinstance(params, Only) and not transformed
    # Nothing will be differentiated in a solve without grad, unless its continuous solution is.
    held = spec.f.f if torch.is_grad_enabled() or spec.dense else None
    task = Task(spec, (), Snapshot(held, y.device), Stats(), complete=complete)
    random = RandomnessCheck(y.device)
    try:
        first = None if transformed else _first(task, y, params)
        wanted = first is not None and (y.requires_grad or t.requires_grad or bool(first.params))
        if first is not None and wanted:
            task = replace(task, params=first.params)
            how = _chosen(how, task, first)
            how.check(spec)
        elif transformed:
            how = _transformable(how, task)
        spec = how.adapt(spec)
        if spec is not arranged.spec:
            arranged, task = replace(arranged, spec=spec), replace(task, spec=spec)
        flow = Flow(spec.f, y, task.snapshot, task.stats, task.params)
        # Gradients in the times come from the flow at the observations, unless a fixed grid carries them.
        moving = private.is_differentiated(t) if transformed else t.requires_grad and wanted
        by_flow = moving and not (how.exact_clock and spec.solver.points is not None)
        if by_flow:
            y = shift(flow, y, t[:, 0] if flow.per_sample else t[0], sign=-1.0)
        out = how.apply(task, y, first) if first is not None and wanted else _forward(task, y, first)
    except SolveError as error:
        check_finite(arranged.y0, arranged.layout)
        random.explain(error, spec, arranged.y0)
        raise
    except RuntimeError as error:
        if private.inside_transform() and "vmap: It looks like you're" in str(error):
            raise ValueError(HIDDEN) from error
        raise
    random.refuse(spec, arranged.y0, fixed_is_fine=how.name == "direct" or not wanted)
    return conclude(arranged, task, out, flow, in_times=by_flow)


def _chosen(how: Gradient, task: Task, first: First) -> Gradient:
    """The gradient asked for, or the one that ``auto`` chooses; which, and why, stands in the statistics."""
    if not isinstance(how, Auto):
        task.say(f"{how.name} was asked for")
    else:
        choice = how.choose(task, first)
        how = choice.gradient
        task.say(f"auto chose {choice.reason}")
        logger.debug("%s for %s", task.stats.reason, type(task.f.f).__name__)
    if not isinstance(how, Direct) and any(private.is_sharded(m) for m in task.snapshot.modules):
        raise ValueError(
            f"gradient={how.name!r} evaluates f in the backward pass, where the parameters of a module under "
            "fully_shard (FSDP) are not what they were. Use gradient='direct', or apply fully_shard only to a module "
            "around the solve."
        )
    task.stats.method = how.name
    return how


def _transformable(how: Gradient, task: Task) -> Gradient:
    """Inside torch.func and forward mode, torch differentiates the operations of the solve by itself."""
    if not isinstance(how, Direct | Auto) and torch.is_grad_enabled():
        raise ValueError(
            f"gradient={how.name!r} cannot run inside torch.func.grad, vmap, jvp or the like, nor with forward-mode "
            "derivatives, which differentiate the operations of the solve: use gradient='direct' (or 'auto') there."
        )
    solver = task.spec.solver
    if not solver.stepper.transformable:
        raise ValueError(
            f"method={solver.name!r} cannot run inside torch.func.grad, vmap, jvp or the like, nor with forward-mode "
            "derivatives: its steps are not made of torch's operations alone. Use an explicit method, such as 'dopri5'."
        )
    task.stats.method, task.stats.reason = "direct", "direct: torch.func or forward mode differentiates the solve"
    return Direct()


def _first(task: Task, y: Tensor, params: Sequence[Tensor] | None) -> First | None:
    """The first evaluation, recorded if autograd is on."""
    if not torch.is_grad_enabled():
        return None
    first = First.record(task.spec, y, task.snapshot, params)
    task.stats.forward_evaluations += task.f.evaluations
    return first


def _forward(task: Task, y: Tensor, first: First | None) -> Outcome:
    """Solve, with nothing to be differentiated as far as the first evaluation shows; autograd sees what comes later."""
    if not task.stats.reason:
        task.say("no gradient is needed")
    before = task.f.evaluations
    with torch.set_grad_enabled(torch.is_grad_enabled() and not task.complete):
        integrator = task.spec.begin(y, StartedDynamics(task.f, first))
        run = integrator.run()
    task.count(run, task.f.evaluations - before)
    return Outcome(run.ys, run, integrator.observer, [Part(run)])
