"""What to solve, at which times, how; and the solve itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from quadjoint.solver.clocks import PiecewiseMap
from quadjoint.solver.control import AdaptiveControl, Control, StepSettings
from quadjoint.solver.dynamics import Dynamics
from quadjoint.solver.events import EventFunction, EventWatch
from quadjoint.solver.independent.loop import SampleIntegration, SampleIntegrator
from quadjoint.solver.independent.sample_control import SampleControl
from quadjoint.solver.independent.sample_events import SampleEvents
from quadjoint.solver.independent.sample_observer import GlanceObserver, StepObserver
from quadjoint.solver.independent.samples import Samples
from quadjoint.solver.integrate import Hooks, Integration, Integrator, retrace
from quadjoint.solver.methods.tableau import ButcherTableau
from quadjoint.solver.observe import Observer, SampleObserver
from quadjoint.solver.protocols import Step, Stepper, Time, VectorField
from quadjoint.solver.state import Layout

Method = str | ButcherTableau | Stepper  # what can be given as ``method=``


@dataclass(frozen=True)
class InitialValue:
    """An initial value problem: what the choice of steps may depend on."""

    f: Callable[..., Any]
    y0: Tensor
    t: Tensor  # observation times, shared by the batch
    layout: Layout
    open_end: bool = False  # an event will end the solve; the last time says the direction alone

    @property
    def times(self) -> list[float]:
        """The observation times as numbers."""
        return self.t.detach().to("cpu", torch.float64).tolist()


@dataclass(frozen=True)
class Solver:
    """A method with its settings: the stepper, and a fresh step control for every solve."""

    method: Method  # as it was given
    stepper: Stepper
    make_control: Callable[[], Control]
    settings: StepSettings
    grid: list[float] | None = None  # of a fixed-step method
    points: Tensor | None = None  # the grid as a tensor, if it depends on learnable times

    @property
    def name(self) -> str:
        """The method by its name."""
        return self.method if isinstance(self.method, str) else self.method.name

    @property
    def order(self) -> int:
        return self.stepper.order

    @property
    def judges_start(self) -> bool:
        """Whether the solve itself fails if the initial state is not finite; nobody has to look at it before."""
        return not self.stepper.free and (self.grid is not None or self.settings.first_step is None)

    @property
    def discontinuities(self) -> frozenset[float]:
        """Times at which f may jump, and steps end."""
        return frozenset(self.settings.jump_t)

    @property
    def eager(self) -> Stepper:
        """The stepper for other dynamics than the forward solve's, which may be compiled."""
        return self.stepper.eager

    @property
    def smooth(self) -> Stepper:
        """The eager stepper with the method's own continuous extension, whatever observations are made with."""
        return self.stepper.eager.smooth

    def with_settings(self, **changes: Any) -> Solver:
        """The same adaptive solver with other settings."""
        settings = replace(self.settings, **changes)
        return replace(
            self, settings=settings, make_control=lambda: AdaptiveControl(settings, self.stepper.estimate_order)
        )


@dataclass(frozen=True)
class Spec:
    """A solve that has been checked and arranged. Nothing writes into it."""

    f: Dynamics
    solver: Solver
    make_observer: Callable[[], Observer | SampleObserver | StepObserver]
    event: EventFunction | None = None
    event_tolerance: float = 1e-9
    hooks: Hooks = field(default_factory=Hooks)
    dense: bool = False  # keep the steps for the continuous solution
    open_end: bool = True  # a solve with an event goes on until it comes
    samples: Samples | None = None  # of a batch in which every sample takes steps of its own

    @property
    def start(self) -> Time:
        """The initial time; of independent samples the tensor of their initial times."""
        return self.interval[0] if self.samples is None else self.samples.start

    @property
    def interval(self) -> tuple[float, float]:
        """From the initial to the last time, on the clock of the batch."""
        observer = self.make_observer()
        assert not isinstance(observer, StepObserver)
        return observer.interval

    @property
    def adaptive(self) -> bool:
        """Whether the steps depend on the values of f."""
        return self.solver.grid is None

    def times(self, event_time: float | None = None) -> list[float]:
        """Times shared by the batch, with that of an event last if there is one."""
        observer = self.make_observer()
        assert isinstance(observer, Observer)
        return observer.times if event_time is None else [*observer.times[:-1], event_time]

    def begin(
        self, y0: Tensor, f: VectorField | None = None, accepted: Callable[[Step], None] | None = None
    ) -> Integrator | SampleIntegrator:
        """The solve from ``y0``, ready to run; grad mode decides whether autograd records it.

        ``f`` stands in for the dynamics if their evaluations are to be watched.
        """
        if self.samples is not None:
            return self._begin_samples(self.samples, y0, self.f if f is None else f, accepted)
        observer = self.make_observer()
        assert not isinstance(observer, StepObserver)
        watch = None
        if self.event is not None:
            watch = self.watch_event(self.event, y0)
        return Integrator(
            self.f if f is None else f,
            y0,
            stepper=self.solver.stepper,
            control=self.solver.make_control(),
            observer=observer,
            watch=watch,
            hooks=self.hooks if accepted is None else replace(self.hooks, accepted=accepted),
            keep=self.dense,
            discontinuities=self.solver.discontinuities,
        )

    def watch_event(self, event: EventFunction, y0: Tensor) -> EventWatch:
        """What looks for the event, for steps that the batch shares."""
        start, _ = self.interval
        return EventWatch(event, self.f, start, y0, tolerance=self.event_tolerance, open_end=self.open_end)

    def _begin_samples(
        self, samples: Samples, y0: Tensor, f: VectorField, accepted: Callable[[Step], None] | None
    ) -> SampleIntegrator:
        observer, watch = self.make_observer(), None
        assert isinstance(observer, StepObserver)
        if self.event is not None:
            watch = SampleEvents(self.event, self.f, samples, y0, tolerance=self.event_tolerance)
        return SampleIntegrator(
            f,
            y0,
            stepper=self.solver.stepper,
            control=SampleControl(self.solver.settings, self.solver.stepper.estimate_order, samples),
            observer=observer,
            watch=watch,
            hooks=self.hooks if accepted is None else replace(self.hooks, accepted=accepted),
            keep=self.dense,
        )

    def on_step_clock(self, run: Integration) -> Spec:
        """The solve on a clock that all samples share: that of their own steps, the n-th from n to n + 1."""
        if not isinstance(run, SampleIntegration):
            return self
        like = torch.empty((), dtype=self.f.dtype, device=self.f.device).expand(self.f.shape)
        return replace(self, f=self.f.remapped(like, PiecewiseMap(run.table.T, like)))

    def retrace(self, y0: Tensor, run: Integration, *, points: Tensor | None, observed: Tensor | None) -> Integration:
        """The same steps again, recorded by autograd; ``points`` and ``observed`` are times to differentiate in."""
        observer: Observer | SampleObserver | GlanceObserver
        if isinstance(run, SampleIntegration):
            assert self.samples is not None
            observer = GlanceObserver(run.glances, run.first)
            points = torch.stack([self.samples.shaped(t) for t in run.ends])
            y0 = run.startable(y0)
        else:
            made = self.make_observer()
            assert not isinstance(made, StepObserver)
            observer = made
        if run.event_time is not None:
            assert isinstance(observer, Observer)
            observer.times[-1] = run.event_time
        if observed is not None:
            assert isinstance(observer, Observer)
            observer.points = observed
        return retrace(
            self.f,
            y0,
            run.taken,
            stepper=self.solver.eager.twice,
            observer=observer,
            points=points,
            discontinuities=self.solver.discontinuities,
        )
