"""The accept/reject loop of a batch in which every sample takes steps of its own.

All samples attempt a step together, each of its own length; a sample whose step is rejected stays where it was while
others go on, and one that has ended takes steps of length zero. With the table of the times at which attempts began,
such a solve is one with the steps n = 0, 1, 2, ... of the whole batch, which is how it is taken again and
differentiated. The host reads a few counts once an attempt, whatever the number of samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from quadjoint.solver.independent.endings import Ending, Status, failure, no_failures
from quadjoint.solver.independent.sample_control import SampleControl, Verdict
from quadjoint.solver.independent.sample_events import SampleEvents
from quadjoint.solver.independent.sample_observer import Glance, StepObserver
from quadjoint.solver.integrate import Hooks, Integration, Taken
from quadjoint.solver.protocols import Clock, SampleStep, Step, Stepper, VectorField


@dataclass
class SampleIntegration(Integration):
    """What an independent solve leaves behind."""

    ends: list[Tensor] = field(default_factory=list)  # of the steps, (B,) each, the initial times first
    glances: list[Glance] = field(default_factory=list)
    status: Status | None = None
    event_index: Tensor | None = None  # (B,), which entry of the event function; -1 for none
    rejections: Tensor | None = None  # (B,)
    lame: Tensor | None = None  # (B,), samples for which f is not finite at the initial time

    def startable(self, y0: Tensor) -> Tensor:
        """The initial states, of samples that cannot be solved that of one that can.

        They go on from it in steps of length zero, so that f is finite.
        """
        if self.lame is None:
            return y0
        well = y0.detach()[(~self.lame).int().argmax()]
        return torch.where(self.lame.reshape(-1, *(1,) * (y0.ndim - 1)), well, y0)

    @property
    def first(self) -> int:
        """The number of the first step, which is not zero in the rest of a solve that was paused."""
        return round(self.taken[0].t0) if self.taken else 0

    @property
    def table(self) -> Tensor:
        """The times of all samples before and after every step, shape (steps + 1, B)."""
        return torch.stack(self.ends)

    @property
    def counts(self) -> tuple[int | Tensor, int | Tensor]:
        """Of each sample, shape (B,); steps of length zero count for none."""
        assert self.rejections is not None
        return (self.table.diff(dim=0) != 0.0).sum(0), self.rejections


@dataclass(frozen=True)
class _Counts:
    """What the host knows of an attempt: numbers of samples, and of states to observe."""

    accepted: int
    ended: int
    stuck: int
    unusable: int = 0
    events: int = 0
    inner: int = 0


class SampleIntegrator:
    """A solve of independent samples, which can be paused between two steps."""

    def __init__(
        self,
        f: VectorField,
        y0: Tensor,
        *,
        stepper: Stepper,
        control: SampleControl,
        observer: StepObserver,
        watch: SampleEvents | None = None,
        hooks: Hooks | None = None,
        keep: bool = False,
    ) -> None:
        self.f, self.stepper, self.control, self.observer = f, stepper, control, observer
        self.watch, self.hooks, self.keep = watch, hooks or Hooks(), keep
        self.samples, self.y, self.y0 = control.samples, y0, y0
        self.carry: Any = None
        self.lame: Tensor | None = None  # as of the first part of a solve that was paused
        self.out = SampleIntegration(y0, ends=[control.time], glances=observer.glances)
        self.codes = no_failures(len(self.samples), y0.device)
        self.rejections = torch.zeros_like(self.codes)
        self.attempts = self.done = 0  # samples that have ended
        self.first = 0  # number of the first step
        observer.begin(y0)
        self.finished = False
        if observer.count == 1:
            self._finish()
        else:
            self._begin()

    def _begin(self) -> None:
        """Evaluate f at the initial states; samples for which it is not finite there cannot be solved."""
        self.carry = slope = self.control.start(self.f, self.y)
        bad = ~torch.isfinite(slope.detach()).reshape(len(slope), -1).all(1)
        still = self.control.t == self.control.end
        bad_count, self.done = torch.stack([bad, bad | still]).sum(1).tolist()
        self.control.resting = self.control.resting or self.done > 0
        if bad_count:
            self._fail(bad, Ending.NOT_FINITE)
            self.lame = self.out.lame = bad
            self.y, self.carry = self.out.startable(self.y), None
        if self.done == len(self.codes):
            self._finish()

    def run(self, paused: Callable[[], bool] | None = None) -> SampleIntegration:
        """Take steps until every sample has ended, or until ``paused`` says so after one that moved a sample."""
        while not self.finished:
            if self._attempt() and paused is not None and not self.finished and paused():
                break
        self.out.ys = self.observer.take()
        self.out.rejections = self.rejections
        return self.out

    def _attempt(self) -> bool:
        """One step of every sample; whether any was accepted."""
        control, n, t0, t1 = self.control, len(self.out.taken), self.control.t, self.control.propose()
        clock = self._clock(t0, t1)
        if self.hooks.on_step:
            self.hooks.on_step(control.time, self.y, t1 - t0)
        step = self._step(n, clock)
        verdict = control.judge(step, t1)
        if self.watch is not None:
            step = step.at_rest(self.samples.shaped(verdict.accepted))
            verdict = replace(verdict, ended=verdict.ended | self.watch.detect(step))
        counts = self._read(verdict, t0, t1)
        self.attempts += 1
        rejected = counts.accepted < len(self.codes)
        if rejected:
            self.rejections = self.rejections + ~verdict.accepted
            if self.hooks.on_reject:
                self.hooks.on_reject(control.time, self.y, torch.where(verdict.accepted, 0.0, t1 - t0))
        moved = counts.accepted > self.done
        before, self.done = self.done, counts.ended
        control.resting = control.resting or self.done > 0
        if not moved:
            self.carry = self.carry if step.retry is None else step.retry
        else:
            self._accept(self._resolved(step, verdict, counts), counts)
        self._check(verdict, counts, before)
        return moved

    def _clock(self, t0: Tensor, t1: Tensor) -> Clock:
        """The ends of the samples' steps, shaped to broadcast against the state."""
        return self.samples.shaped(self.samples.forwards(t0)), self.samples.shaped(self.samples.forwards(t1))

    def _step(self, n: int, clock: Clock) -> SampleStep:
        t0 = float(self.first + n)
        return cast(SampleStep, self.stepper.step(self.f, t0, t0 + 1.0, self.y, carry=self.carry, clock=clock))

    def _read(self, verdict: Verdict, t0: Tensor, t1: Tensor) -> _Counts:
        """The one look of the host at an attempt."""
        rows = {"accepted": verdict.accepted, "ended": verdict.ended, "stuck": verdict.stuck}
        if self._recording:
            rows["unusable"] = verdict.unusable
        if self.watch is not None:
            rows["events"] = self.watch.found
        counts = torch.stack(list(rows.values())).sum(1)
        names = list(rows)
        if self.observer.inner is not None:
            inner = self.observer.count_until(torch.where(verdict.accepted, t1, t0))
            counts, names = torch.cat([counts, inner[None]]), [*names, "inner"]
        return _Counts(**dict(zip(names, counts.tolist(), strict=True)))

    def _resolved(self, step: SampleStep, verdict: Verdict, counts: _Counts) -> SampleStep:
        """The step with the samples whose step was rejected at rest."""
        accepted = self.samples.shaped(verdict.accepted)
        if counts.unusable:
            assert step.clock is not None
            clock = (step.clock[0], torch.where(accepted, step.clock[1], step.clock[0]))
            return self._step(len(self.out.taken), clock)
        if self.watch is None and counts.accepted < len(self.codes):
            return step.at_rest(accepted)
        return step

    @property
    def _recording(self) -> bool:
        return self.keep or self.hooks.accepted is not None or torch.is_grad_enabled()

    def _accept(self, step: SampleStep, counts: _Counts) -> None:
        assert step.clock is not None
        out, n, end = self.out, len(self.out.taken), step.clock[1].reshape(-1)
        t1 = self.samples.forwards(end)
        if self.hooks.on_accept:
            self.hooks.on_accept(self.control.time, self.y, t1 - self.control.t)
        out.taken.append(Taken(step.t0, step.t1, (0, 0)))
        out.ends.append(end)
        if self.keep:
            out.steps.append(step)
        self.control.t = t1
        inner = counts.inner
        if counts.events:
            inner = self._end_at_events(n, step, counts)
        self.observer.collect(self.first + n, step, inner)
        if self.hooks.accepted:
            self.hooks.accepted(step)
        self.y, self.carry = step.y1, step.carry
        self.stepper.forget(step)
        if self.done == len(self.codes):
            self._finish()

    def _end_at_events(self, n: int, step: SampleStep, counts: _Counts) -> int:
        """Find the events in a step and end their samples there; how many inner times lie before."""
        assert self.watch is not None
        found = self.watch.locate(step)
        self.codes = torch.where(found.which, int(Ending.EVENT), self.codes)
        self.control.halt(found.which)
        rows = torch.nonzero_static(found.which, size=counts.events)[:, 0]
        self.observer.end_at(self.first + n, step, rows, found.theta[rows])
        if not counts.inner:
            return 0
        reached = torch.where(found.which, self.samples.forwards(found.t), self.control.t)
        return int(self.observer.count_until(reached))

    def _check(self, verdict: Verdict, counts: _Counts, before: int) -> None:
        """Whether samples get on; those that do not have failed."""
        if self.finished:
            return
        control = self.control
        if counts.stuck > before:
            size, left = control.h, control.end - control.t
            going = left > 0.0
            tiny = going & (size < 1e-13 * control.t.abs().clamp(min=1.0))
            short = going & (size < 10 * control.eps * control.t.abs()) & (left > 1.01 * size)
            endless = verdict.infinite & tiny
            if verdict.hopeless is not None:
                short = short | verdict.hopeless
                endless = endless | (verdict.hopeless if verdict.lost is None else verdict.hopeless & ~verdict.lost)
            self._fail(endless, Ending.NOT_FINITE)
            self._fail(short & ~endless, Ending.STEP_TOO_SMALL)
        if not self.finished and self.attempts >= control.settings.max_num_steps:
            self._fail(control.end != control.t, Ending.TOO_MANY_STEPS)
        if not self.finished and self.done == len(self.codes):
            self._finish()

    def _fail(self, which: Tensor, why: Ending) -> None:
        """End samples that cannot be solved."""
        count = int(which.sum())
        if not count:
            return
        self.codes = torch.where(which, int(why), self.codes)
        if self.samples.on_failure == "error":
            raise failure(self.codes, self.control.time, self.control.h)
        self.control.halt(which)
        if self.attempts:
            self.done += count

    def _finish(self) -> None:
        self.finished, out = True, self.out
        ended_at, rows = self.control.time, None
        if self.watch is not None:
            happened = self.codes == Ending.EVENT
            ended_at = torch.where(happened, self.watch.times, ended_at)
            out.event_index = self.watch.index
            rows = (~happened).nonzero()[:, 0]
        if self.lame is not None:
            self.y = torch.where(self.samples.shaped(self.lame), self.y0, self.y)
        self.observer.finish(self.first + len(out.taken), self.y, rows)
        out.status = Status(self.codes, ended_at)

    @property
    def place(self) -> str:
        """How far the solve has got, for messages."""
        return f"step {self.first + len(self.out.taken)}"

    def rest(self) -> Callable[[], StepObserver]:
        """Observers of what is still to come."""
        return self.observer.rest()

    def resume(
        self, y: Tensor, f: VectorField, *, accepted: Callable[[Step], None], observer: StepObserver
    ) -> SampleIntegrator:
        """Go on from ``y``, the states reached, with other dynamics and observer; derivatives are evaluated anew."""
        self.f, self.y, self.carry, self.observer = f, y, None, observer
        self.hooks = replace(self.hooks, accepted=accepted)
        self.first += len(self.out.taken)
        self.out = SampleIntegration(y, ends=[self.control.time], glances=observer.glances)
        self.rejections = torch.zeros_like(self.rejections)
        return self
