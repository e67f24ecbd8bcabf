"""What to solve, at which times, how; and the solve itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from quadjoint.solver.control import AdaptiveControl, Control, StepSettings
from quadjoint.solver.dynamics import Dynamics
from quadjoint.solver.events import EventFunction, EventWatch
from quadjoint.solver.integrate import Hooks, Integration, Integrator, retrace
from quadjoint.solver.methods.tableau import ButcherTableau
from quadjoint.solver.observe import Observer, SampleObserver
from quadjoint.solver.protocols import Step, Stepper, VectorField
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
    make_observer: Callable[[], Observer | SampleObserver]
    event: EventFunction | None = None
    event_tolerance: float = 1e-9
    hooks: Hooks = field(default_factory=Hooks)
    dense: bool = False  # keep the steps for the continuous solution

    @property
    def start(self) -> float:
        return self.make_observer().interval[0]

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
    ) -> Integrator:
        """The solve from ``y0``, ready to run; grad mode decides whether autograd records it.

        ``f`` stands in for the dynamics if their evaluations are to be watched.
        """
        observer = self.make_observer()
        watch = None
        if self.event is not None:
            start = observer.interval[0]
            watch = EventWatch(self.event, self.f, start, y0, tolerance=self.event_tolerance)
        return Integrator(
            self.f if f is None else f,
            y0,
            stepper=self.solver.stepper,
            control=self.solver.make_control(),
            observer=observer,
            watch=watch,
            hooks=replace(self.hooks, accepted=accepted),
            keep=self.dense,
        )

    def retrace(self, y0: Tensor, run: Integration, *, points: Tensor | None, observed: Tensor | None) -> Integration:
        """The same steps again, recorded by autograd; ``points`` and ``observed`` are times to differentiate in."""
        observer = self.make_observer()
        if run.event_time is not None:
            assert isinstance(observer, Observer)
            observer.times[-1] = run.event_time
        if observed is not None:
            observer.points = observed
        return retrace(
            self.f,
            y0,
            run.taken,
            stepper=self.solver.eager.twice,
            observer=observer,
            points=points,
            discontinuities=frozenset(self.solver.settings.jump_t),
        )
