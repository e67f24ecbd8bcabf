"""The one accept/reject loop. It knows steps, stops, observations and events, and nothing of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from quadjoint.errors import NonFiniteStateError, TooManyStepsError
from quadjoint.solver.control import Control, GridControl
from quadjoint.solver.events import EventWatch
from quadjoint.solver.methods.runge_kutta_step import RungeKuttaStep
from quadjoint.solver.observe import Collector, Observer, SampleObserver
from quadjoint.solver.protocols import Nudge, Step, Stepper, VectorField
from quadjoint.solver.state import is_finite
from quadjoint.solver.stiffness import ADVICE, NEAR, StiffnessWatch, stiffness

Jumps = dict[float, Callable[[Tensor], Tensor]]


@dataclass
class Hooks:
    """What is called on the way with (t, y, dt): before a step, after it was accepted or rejected."""

    on_step: Callable[[Any, Tensor, Any], None] | None = None
    on_accept: Callable[[Any, Tensor, Any], None] | None = None
    on_reject: Callable[[Any, Tensor, Any], None] | None = None
    accepted: Callable[[Step], None] | None = None  # receives the accepted step itself


@dataclass(frozen=True)
class Taken:
    """An accepted step as numbers: enough to take it again."""

    t0: float
    t1: float
    nudge: Nudge


@dataclass
class Integration:
    """What a solve leaves behind."""

    ys: Tensor  # the observations in the order of time
    taken: list[Taken] = field(default_factory=list)
    rejected_steps: int = 0
    event_time: float | None = None
    steps: list[Step] = field(default_factory=list)  # the accepted steps, if they were to be kept

    @property
    def accepted_steps(self) -> int:
        return len(self.taken)

    @property
    def counts(self) -> tuple[int | Tensor, int | Tensor]:
        """How many steps were accepted and rejected."""
        return self.accepted_steps, self.rejected_steps


class Integrator:
    """A solve from the observer's first to its last time, which can be paused between two steps.

    ``jumps`` maps times to functions of the state that are applied there (the solve lands on them exactly, keeps its
    step size and evaluates the derivative anew). With a ``watch`` for an event the last time is open: the solve ends
    where the event function changes sign, and the state there is the last observation. ``keep`` keeps the accepted
    steps. After ``discontinuities`` of f, by default those that the control knows, a step takes nothing from the one
    before.
    """

    def __init__(
        self,
        f: VectorField,
        y0: Tensor,
        *,
        stepper: Stepper,
        control: Control,
        observer: Observer | SampleObserver,
        watch: EventWatch | None = None,
        hooks: Hooks | None = None,
        keep: bool = False,
        jumps: Jumps | None = None,
        discontinuities: Set[float] | None = None,
    ) -> None:
        self.f, self.stepper, self.control, self.observer = f, stepper, control, observer
        self.watch, self.hooks, self.keep, self.jumps = watch, hooks or Hooks(), keep, jumps or {}
        self.attempts = 0
        self.t, self.t_end = observer.interval
        self.out = Integration(y0)
        observer.begin(y0)
        self.y = self.jumps[self.t](y0) if self.t in self.jumps else y0
        self.finished = self.t == self.t_end
        if self.finished:
            return
        towards = self.t_end
        if watch is not None:
            assert isinstance(observer, Observer)
            if watch.open_end:
                self.t_end = math.copysign(math.inf, towards - self.t)  # where the event is remains to be seen
            observer.times[-1] = self.t_end
        self.stops = _stops(self.t, self.t_end, control, self.jumps)
        self.discontinuities = set(control.settings.jump_t) if discontinuities is None else discontinuities
        self.stiffness = StiffnessWatch(stepper, f)
        self.carry = control.start(f, self.t, self.y, towards)
        self.fresh = self.t in self.discontinuities

    def run(self, paused: Callable[[], bool] | None = None) -> Integration:
        """Take steps up to the end, or until ``paused`` says so after an accepted one."""
        while not self.finished:
            if self._attempt() and paused is not None and not self.finished and paused():
                break
        else:
            if isinstance(self.control, GridControl) and self.out.taken:
                _check_finite(self.y, self.t)
        self.out.ys = self.observer.take()
        return self.out

    def _attempt(self) -> bool:
        """One step; whether it was accepted."""
        t, y, control, hooks = self.t, self.y, self.control, self.hooks
        stop = self.stops[-1]
        t1, clock = control.propose(t, stop)
        nudge = _nudge(self.fresh or control.perturb, t1 in self.discontinuities or control.perturb, t1 - t)
        if hooks.on_step:
            hooks.on_step(t, y, t1 - t)
        step = self.stepper.step(self.f, t, t1, y, carry=self.carry, nudge=nudge, clock=clock)
        good = control.judge(step)
        if good:
            self._accept(step, stop, nudge)
        else:
            self.out.rejected_steps += 1
            if hooks.on_reject:
                hooks.on_reject(t, y, t1 - t)
            self.carry = self.carry if step.retry is None else step.retry
        self.attempts += 1
        if not self.finished and self.attempts >= control.settings.max_num_steps:
            raise _too_many(self, step) if self.watch is None else _no_event(self, self.watch)
        return good

    def _accept(self, step: Step, stop: float, nudge: Nudge) -> None:
        out = self.out
        if self.hooks.on_accept:
            self.hooks.on_accept(self.t, self.y, step.t1 - step.t0)
        out.taken.append(Taken(step.t0, step.t1, nudge))
        if self.keep:
            out.steps.append(step)
        if self.watch is not None and self.watch.crossed(step):
            assert isinstance(self.observer, Observer)
            out.event_time = self.watch.locate(step)
            self.observer.finish_at(out.event_time, step)
            self.finished = True
        else:
            self.observer.collect(step)
        if self.hooks.accepted:
            self.hooks.accepted(step)
        self.stiffness.accept(step)
        self.t, self.y, self.carry = step.t1, step.y1, step.carry
        self.stepper.forget(step)
        self.fresh = self.t in self.discontinuities
        if self.t in self.jumps:
            self.y = self.jumps[self.t](self.y)
        if self.fresh or self.t in self.jumps:
            self.carry = None
        if self.t == stop:
            self.stops.pop()
            self.finished = self.finished or not self.stops

    @property
    def place(self) -> str:
        """How far the solve has got, for messages."""
        return f"t = {self.t:.6g}"

    def rest(self) -> Callable[[], Observer | SampleObserver]:
        """Observers of what is still to come."""
        return self.observer.rest(self.t)

    def resume(
        self, y: Tensor, f: VectorField, *, accepted: Callable[[Step], None], observer: Observer | SampleObserver
    ) -> Integrator:
        """Go on from ``y``, the state reached, with other dynamics and observer; its derivative is evaluated anew."""
        self.f, self.y, self.carry, self.observer = f, y, None, observer
        self.hooks, self.out = replace(self.hooks, accepted=accepted), Integration(y)
        return self


def retrace(
    f: VectorField,
    y0: Tensor,
    taken: list[Taken],
    *,
    stepper: Stepper,
    observer: Collector,
    points: Tensor | None = None,
    discontinuities: Set[float] = frozenset(),
) -> Integration:
    """Take the accepted steps of a solve again: the same numbers, without any control.

    ``points`` are the ends of the steps as a tensor, if they are to be differentiated in or differ between samples.
    """
    out = Integration(y0, list(taken))
    observer.begin(y0)
    y, carry = y0, None
    for n, record in enumerate(taken):
        clock = None if points is None else (points[n], points[n + 1])
        step = stepper.step(f, record.t0, record.t1, y, carry=carry, nudge=record.nudge, clock=clock)
        out.steps.append(step)
        observer.collect(step)
        y, carry = step.y1, None if step.t1 in discontinuities else step.carry
        stepper.forget(step)
    out.ys = observer.take()
    return out


def _too_many(solve: Integrator, step: Step) -> TooManyStepsError:
    return TooManyStepsError(
        f"{solve.control.settings.max_num_steps} steps were not enough: the solve got to t = {solve.t:.6g} of "
        f"{solve.t_end:.6g} with step size {abs(step.t1 - step.t0):.3g}. {_remedy(step)}"
    )


def _no_event(solve: Integrator, watch: EventWatch) -> TooManyStepsError:
    return TooManyStepsError(
        f"The event did not come within {solve.control.settings.max_num_steps} steps, up to t = {solve.t:.6g}: there, "
        f"event_fn times its sign at the initial time is {watch.value(solve.t, solve.y):.3g}, and it would be negative "
        "after the event. Check that event_fn changes its sign, end the solve with options={'horizon': ...}, or raise "
        "options['max_num_steps']."
    )


def _remedy(step: Step) -> str:
    """What to do about too many steps."""
    others = "raise options['max_num_steps'] or loosen the tolerances"
    if isinstance(step, RungeKuttaStep) and not step.method.tableau.explicit:
        return f"{others[0].upper()}{others[1:]}."
    found = stiffness(step)
    if found is not None and found >= NEAR:
        return f"The problem is stiff, as stability limits the step, and not the tolerance: {ADVICE}. Else {others}."
    return f"{others[0].upper()}{others[1:]}; if the problem is stiff, {ADVICE}."


def _stops(t0: float, t_end: float, control: Control, jumps: Jumps) -> list[float]:
    """Times on which a step must end, the next one last."""
    settings = control.settings
    sign = math.copysign(1.0, t_end - t0)
    wanted = {*settings.step_t, *settings.jump_t, *jumps}
    inside = [s for s in wanted if sign * t0 < sign * s < sign * t_end]
    return sorted([*inside, t_end], key=lambda s: -sign * s)


def _nudge(after_jump: bool, before_jump: bool, dt: float) -> Nudge:
    """Evaluate just after a discontinuity at the start of a step and just before one at its end."""
    direction = 1 if dt > 0 else -1
    return (direction if after_jump else 0), (-direction if before_jump else 0)


def _check_finite(y: Tensor, t: float) -> None:
    """Fixed steps are not judged, so their result is looked at once, at the end."""
    if not is_finite(y):
        raise NonFiniteStateError(
            f"The state is not finite at t = {t:.6g}. Fixed steps may be too long for this problem (try a smaller "
            "options['step_size'] or an adaptive method), or f is not finite."
        )
