"""The one accept/reject loop. It knows steps, stops, observations and events, and nothing of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.errors import NonFiniteStateError, SolveError, TooManyStepsError
from quadjoint.solver.control import Control, GridControl
from quadjoint.solver.dynamics import Dynamics

EventFunction = Callable[[Tensor, Tensor], Tensor]


class Observer:
    """Collects the states at given times, in the order of integration; the first time is the initial one."""

    def __init__(self, times: Sequence[float], points: Tensor | None = None) -> None:
        self.times = list(times)
        self.points = points  # the same times as a tensor, where they are differentiated on a fixed grid
        self.next = 1
        self.chunks: list[Tensor] = []
        self.plan: list[tuple[int, int]] = []  # per accepted step, the range of its observations
        self.sign = -1.0 if len(self.times) > 1 and self.times[-1] < self.times[0] else 1.0

    @property
    def interval(self) -> tuple[float, float]:
        return self.times[0], self.times[-1]

    def begin(self, y0: Tensor) -> None:
        self.chunks.append(y0[None])

    def collect(self, step: Any) -> None:
        first, times, end = self.next, self.times, self.sign * step.t1
        while self.next < len(times) and self.sign * times[self.next] <= end:
            self.next += 1
        self.plan.append((first, self.next))
        if self.next == first:
            return
        if self.points is not None and step.clock is not None:
            exact_end = self.next - first == 1 and times[first] == step.t1
            self.chunks.append(step.y1[None] if exact_end else step.evaluate_at(self.points[first : self.next]))
        elif self.next - first == 1 and times[first] == step.t1:
            self.chunks.append(step.y1[None])
        else:
            self.chunks.append(step.evaluate(times[first : self.next]))

    def result(self) -> Tensor:
        return torch.cat(self.chunks) if len(self.chunks) > 1 else self.chunks[0]


class SampleObserver:
    """As ``Observer``, for a batch in which each sample has its own increasing times in [0, 1], shape (B, K)."""

    points = None

    def __init__(self, times: np.ndarray) -> None:
        flat = times.T.reshape(-1)  # (K * B), as the output lies
        self.order = np.argsort(flat, kind="stable")
        self.sorted = flat[self.order]
        self.shape = times.T.shape
        self.rows = self.order % times.shape[0]
        self.next = int(np.searchsorted(self.sorted, 0.0, side="right"))
        self.chunks: list[Tensor] = []
        self.plan: list[tuple[int, int]] = []

    @property
    def interval(self) -> tuple[float, float]:
        return 0.0, 1.0

    def begin(self, y0: Tensor) -> None:
        self.chunks.append(y0[self.index(0, self.next, y0.device)])

    def index(self, first: int, last: int, device: torch.device) -> Tensor:
        return torch.as_tensor(self.rows[first:last], device=device)

    def collect(self, step: Any) -> None:
        first = self.next
        self.next = int(np.searchsorted(self.sorted, step.t1, side="right"))
        self.plan.append((first, self.next))
        if self.next > first:
            rows = self.index(first, self.next, step.y0.device)
            self.chunks.append(step.scatter(rows, self.sorted[first : self.next]))

    def result(self) -> Tensor:
        values = torch.cat(self.chunks)
        back = np.empty_like(self.order)
        back[self.order] = np.arange(len(self.order))
        out = values[torch.as_tensor(back, device=values.device)]
        return out.reshape(*self.shape, *values.shape[1:])


@dataclass
class Hooks:
    """What is called on the way: before a step, after it was accepted or rejected."""

    on_step: Callable[[float, Tensor, float], None] | None = None
    on_accept: Callable[[float, Tensor, float], None] | None = None
    on_reject: Callable[[float, Tensor, float], None] | None = None
    accepted: Callable[[Any], None] | None = None  # receives the accepted step itself


@dataclass
class Integration:
    """What a solve leaves behind."""

    ys: Tensor
    accepted_steps: int
    rejected_steps: int
    first_h: float | None  # the first step size, if it was a good one
    event_time: float | None = None
    steps: list[Any] = field(default_factory=list)


def integrate(f: Dynamics, y0: Tensor, stepper: Any, control: Control, observer: Observer | SampleObserver, *,
              event: EventFunction | None = None, hooks: Hooks | None = None, keep: bool = False,
              jumps: dict[float, Callable[[Tensor], Tensor]] | None = None) -> Integration:  # fmt: skip
    """Solve from the observer's first to its last time.

    ``jumps`` maps times to functions of the state that are applied there (the solve lands on them exactly, keeps its
    step size and evaluates the derivative anew). With an ``event`` the last time is open: the solve ends where the
    event function changes sign, and the state there is the last observation. ``keep`` keeps the accepted steps.
    """
    hooks, jumps = hooks or Hooks(), jumps or {}
    t, t_end = observer.interval
    out = Integration(y0, 0, 0, None)
    observer.begin(y0)
    y = jumps[t](y0) if t in jumps else y0
    if t == t_end:
        out.ys = observer.result()
        return out
    towards = t_end
    if event is not None:
        assert isinstance(observer, Observer)
        observer.times[-1] = t_end = math.copysign(math.inf, t_end - t)  # where the event is remains to be seen
    stops = _stops(t, t_end, control, jumps)
    discontinuities = set(control.settings.jump_t)
    watch = None if event is None else EventWatch(event, f, t, y0)
    carry = control.start(f, t, y, towards)
    fresh = t in discontinuities
    first_good = True
    while True:
        stop = stops[-1]
        t1, clock = control.propose(t, stop, y)
        nudge = _nudge(fresh or control.perturb, t1 in discontinuities or control.perturb, t1 - t)
        if hooks.on_step:
            hooks.on_step(t, y, t1 - t)
        step = stepper.step(f, t, t1, y, carry, nudge, clock)
        good = control.judge(step)
        if not good:
            out.rejected_steps += 1
            first_good = first_good and out.accepted_steps > 0
            if hooks.on_reject:
                hooks.on_reject(t, y, t1 - t)
            carry = step.ks[0] if hasattr(step, "ks") else carry
        else:
            if hooks.on_accept:
                hooks.on_accept(t, y, t1 - t)
            out.accepted_steps += 1
            if keep:
                out.steps.append(step)
            if watch is not None and watch.crossed(step):
                out.event_time = _finish_at_event(watch, step, observer)
            else:
                observer.collect(step)
            if hooks.accepted:
                hooks.accepted(step)
            if out.event_time is not None:
                break
            t, y, carry = step.t1, step.y1, step.carry
            fresh = t in discontinuities
            if t in jumps:
                y = jumps[t](y)
            if fresh or t in jumps:
                carry = None
            if t == stop:
                stops.pop()
                if not stops:
                    break
        if out.accepted_steps + out.rejected_steps >= control.settings.max_num_steps:
            raise _too_many(control, t, t_end, step)
    if isinstance(control, GridControl):
        _check_finite(y, t)
    out.ys = observer.result()
    out.first_h = control.first_h if first_good else None
    return out


def _too_many(control: Control, t: float, t_end: float, step: Any) -> TooManyStepsError:
    return TooManyStepsError(
        f"{control.settings.max_num_steps} steps were not enough: the solve got to t = {t:.6g} of {t_end:.6g} "
        f"with step size {abs(step.t1 - step.t0):.3g}. Raise options['max_num_steps'], loosen the tolerances, "
        "or, if the problem is stiff, use method='scipy_solver' with options={'solver': 'LSODA'}."
    )


def _stops(t0: float, t_end: float, control: Control, jumps: dict[float, Any]) -> list[float]:
    """Times on which a step must end, the next one last."""
    settings = control.settings
    sign = math.copysign(1.0, t_end - t0)
    wanted = {*settings.step_t, *settings.jump_t, *jumps}
    inside = [s for s in wanted if sign * t0 < sign * s < sign * t_end]
    return sorted([*inside, t_end], key=lambda s: -sign * s)


def _nudge(after_jump: bool, before_jump: bool, dt: float) -> tuple[int, int]:
    """Evaluate just after a discontinuity at the start of a step and just before one at its end."""
    direction = 1 if dt > 0 else -1
    return (direction if after_jump else 0), (-direction if before_jump else 0)


def _check_finite(y: Tensor, t: float) -> None:
    """Fixed steps are not judged, so their result is looked at once, at the end."""
    if not bool(torch.isfinite(y).all()):
        raise NonFiniteStateError(
            f"The state is not finite at t = {t:.6g}. Fixed steps may be too long for this problem (try a smaller "
            "options['step_size'] or an adaptive method), or f is not finite."
        )


def _finish_at_event(watch: EventWatch, step: Any, observer: Observer | SampleObserver) -> float:
    assert isinstance(observer, Observer)
    event_time = watch.locate(step)
    observer.times[-1] = event_time
    observer.next = len(observer.times) - 1
    observer.plan.append((observer.next, observer.next + 1))
    observer.chunks.append(step.evaluate([event_time]))
    return event_time


class EventWatch:
    """Finds the first change of sign of an event function (any of its entries), to ``tol`` in time."""

    def __init__(self, event: EventFunction, f: Dynamics, t0: float, y0: Tensor, tol: float = 1e-9) -> None:
        self.event, self.f, self.tol = event, f, tol
        with torch.no_grad():
            self.signs = torch.sign(event(f.time(t0), y0.detach()))
        if bool((self.signs == 0).any()):
            raise SolveError(
                f"The event function is zero at the initial time t = {t0:.6g} already; start past the event."
            )

    def value(self, t: float, y: Tensor) -> float:
        """Positive before the event; entries are combined by their minimum."""
        with torch.no_grad():
            return float((self.event(self.f.time(t), y.detach()) * self.signs).min())

    def crossed(self, step: Any) -> bool:
        return self.value(step.t1, step.y1) <= 0.0

    def locate(self, step: Any) -> float:
        """Bisection, which cannot fail, on the continuous extension of the step."""
        low, high = step.t0, step.t1
        resolution = max(self.tol, 4 * np.finfo(np.float64).eps * abs(high))
        while abs(high - low) > resolution:
            middle = 0.5 * (low + high)
            with torch.no_grad():
                y = step.evaluate([middle])[0]
            if self.value(middle, y) > 0.0:
                low = middle
            else:
                high = middle
        return high
