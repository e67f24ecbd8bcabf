"""From the observations of a solve to its result: events and their times, gradients in times, samples that failed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.arrange import Arranged
from quadjoint.autograd import private
from quadjoint.gradient.base import Outcome, Part, Task
from quadjoint.gradient.flow import Crossing, Flow, shift
from quadjoint.solver.clocks import PiecewiseMap, on_the_host, wide
from quadjoint.solver.independent.endings import Ending, Status, unreached
from quadjoint.solver.independent.loop import SampleIntegration
from quadjoint.solver.independent.samples import Samples
from quadjoint.solver.sample_clock import SampleClock
from quadjoint.solver.stats import Stats


@dataclass(frozen=True)
class Solved:
    """The result of a solve, and what its continuous solution needs."""

    ts: Tensor  # observation times, that of an event last
    ys: Any  # packed, then as the user has the state
    stats: Stats
    parts: list[Part]
    flow: Flow
    interval: tuple[float, float]  # on the clock of the steps
    clock: SampleClock | None = None  # of samples with times or steps of their own
    event_time: Tensor | None = None
    event_index: Tensor | tuple[int, ...] | None = None
    status: Status | None = None


def conclude(arranged: Arranged, task: Task, out: Outcome, flow: Flow, *, in_times: bool) -> Solved:
    """The result of a solve; ``in_times`` makes the observations differentiable in their times."""
    ys = out.observer.arrange(out.ys)
    interval = (0.0, 1.0) if isinstance(out.run, SampleIntegration) else arranged.spec.interval
    found = Solved(arranged.t, ys, task.stats, out.parts, flow, interval)
    if isinstance(out.run, SampleIntegration):
        found = _end_of_samples(found, arranged, out.run, in_times=in_times)
    else:
        if arranged.spec.event is not None:
            found = _event(found, arranged, out.run.event_time)
            in_times = in_times or (found.event_time is not None and private.is_differentiated(found.event_time))
        if flow.per_sample:
            found = replace(found, clock=_common_clock(arranged))
        if in_times:
            t = found.ts.T if flow.per_sample else found.ts
            found = replace(found, ys=shift(flow, found.ys, t))
    unpacked = arranged.layout.unpack(found.ys, leading=1)
    return found if unpacked is found.ys else replace(found, ys=unpacked)


def _common_clock(arranged: Arranged) -> SampleClock:
    """Which times the samples have on the clock that they share."""
    clock = arranged.spec.f.time_map
    first, last = on_the_host(arranged.t[:, [0, -1]]).T
    table = clock.table if isinstance(clock, PiecewiseMap) else arranged.t[:, [0, -1]]
    return SampleClock(on_the_host(table).T, last, np.where(last < first, -1.0, 1.0))


def _event(found: Solved, arranged: Arranged, event_time: float | None) -> Solved:
    """The event that ended a solve with steps that the batch shares, or the horizon."""
    spec, t, ys = arranged.spec, arranged.t, found.ys
    assert spec.event is not None
    start, end = spec.interval
    if event_time is None:
        event, ending = torch.full((), end, dtype=t.dtype, device=t.device), Ending.LAST_TIME
    else:
        end, ending = event_time, Ending.EVENT
        watch = spec.watch_event(spec.event, arranged.y0)
        here = torch.full((), end, dtype=wide(ys.device), device=ys.device)
        event = Crossing(watch.least, found.flow).time(here, ys[-1]).to(t)
        found = replace(found, event_index=watch.entry(here, ys[-1]))
    status = Status(torch.tensor(int(ending)), torch.tensor(end, dtype=torch.float64))
    return replace(found, ts=torch.stack([t[0], event]), event_time=event, interval=(start, end), status=status)


def _end_of_samples(found: Solved, arranged: Arranged, run: SampleIntegration, *, in_times: bool) -> Solved:
    """Where the samples ended, each in its own way."""
    spec, t, ys, status = arranged.spec, arranged.t, found.ys, run.status
    samples = spec.samples
    assert samples is not None and status is not None
    at_times = status.to(t.device)
    event, ended_early = None, bool((status.codes != 0).any())
    if bool(status.failed.any()):
        found.flow.failed = status.failed
    if spec.event is not None:
        event = _event_times(found, arranged, run)
    elif ended_early:
        event = torch.where(at_times.failed, at_times.t.to(t), t[:, -1])
    first = t.shape[1] - 1  # of the columns that have the ends of samples
    if event is not None and samples.padded is not None:
        padded = samples.padded.to(t.device)
        first = min(first, int((~padded).all(0).sum()))
        t = torch.where(padded, event[:, None], t)
    if event is not None:
        t = torch.cat([t[:, :-1], event[:, None]], dim=1)
    if in_times:
        ys = shift(found.flow, ys, t.T)
    elif event is not None and event.requires_grad:
        ys = torch.cat([ys[:first], shift(found.flow, ys[first:], t[:, first:].T)])
    if ended_early:
        lost = unreached(samples.times, samples.sign, status.t)
        if samples.padded is not None:
            lost = lost & ~samples.padded
        if samples.on_failure == "nan":
            lost = lost | status.failed[:, None]
        ys = ys.masked_fill(lost.T.reshape(*lost.T.shape, *(1,) * (ys.ndim - 2)), torch.nan)
    clock = _step_clock(found.parts, status, samples) if spec.dense else None
    return replace(
        found,
        ts=t if event is not None else arranged.t,
        ys=ys,
        clock=clock,
        event_time=event if spec.event is not None else None,
        event_index=run.event_index,
        status=status,
    )


def _event_times(found: Solved, arranged: Arranged, run: SampleIntegration) -> Tensor:
    """When each sample ended, differentiable in whatever that depends on; without an event, at its last time."""
    spec, t, index, status = arranged.spec, arranged.t, run.event_index, run.status
    samples, happening = spec.samples, spec.event
    assert samples is not None and happening is not None and index is not None and status is not None
    which = index.clamp(min=0)[:, None]

    def value(t: Tensor, y: Tensor) -> Tensor:
        t, y = found.flow.fine(t, y)
        return happening(spec.f.time(samples.shaped(t)), y).reshape(len(samples), -1).gather(1, which)[:, 0]

    crossing = Crossing(value, found.flow, happened=status.event)
    event = crossing.time(status.t, found.ys[-1]).to(t)
    status = status.to(t.device)
    event = torch.where(status.event, event, t[:, -1])
    return torch.where(status.failed, status.t.to(t), event) if bool(status.failed.any()) else event


def _step_clock(parts: list[Part], status: Status, samples: Samples) -> SampleClock:
    """Which time each sample had between the steps."""
    runs = [part.run for part in parts if isinstance(part.run, SampleIntegration)]
    ends = [*(t for run in runs for t in run.ends[:-1]), runs[-1].ends[-1]]
    return SampleClock(on_the_host(torch.stack(ends)), on_the_host(status.t), on_the_host(samples.sign))
