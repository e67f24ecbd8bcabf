"""Everything that one solve needs, checked and ready; the gradient methods work on this."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from quadjoint.autograd.leaves import leaves, module_attributes, reachable, separate
from quadjoint.solver.control import AdaptiveControl, Control, StepSettings
from quadjoint.solver.dynamics import Dynamics
from quadjoint.solver.integrate import EventFunction, Hooks, Integration, Observer, SampleObserver, integrate


@dataclass
class Stats:
    """Figures of a solve: the forward ones at once, the backward ones once ``backward()`` has run.

    >>> import torch, quadjoint as qj
    >>> sol = qj.solve(lambda t, y: -y, torch.ones(1), torch.tensor([0.0, 1.0]))
    >>> sol.stats.forward_evaluations > 0, sol.stats.backward_evaluations
    (True, 0)
    """

    forward_evaluations: int = 0
    accepted_steps: int = 0
    rejected_steps: int = 0
    backward_evaluations: int = 0
    vjp_state: int = 0
    vjp_params: int = 0
    backward_accepted_steps: int = 0
    backward_rejected_steps: int = 0
    quadrature_nodes: int = 0
    gradient_error: float | None = None
    method: str = ""
    reason: str = ""


@dataclass
class Solver:
    """A method with its settings: makes the stepper once and a fresh step control for every solve."""

    method: str
    stepper: Any
    make_control: Callable[[], Control]
    settings: StepSettings
    grid: list[float] | None = None  # of a fixed-step method
    points: Tensor | None = None  # the grid as a tensor, where it depends on learnable times

    @property
    def order(self) -> int:
        return int(self.stepper.order)

    @property
    def eager(self) -> Any:
        """The stepper for other dynamics than the forward solve's, which may be compiled."""
        return getattr(self.stepper, "eager", self.stepper)

    @property
    def smooth(self) -> Any:
        """The eager stepper with the method's own continuous extension, whatever observations are made with."""
        return getattr(self.eager, "smooth", self.eager)

    def starting_with(self, h: float) -> Solver:
        """The same adaptive solver with its first step size given."""
        return self.with_settings(first_step=h)

    def with_settings(self, **changes: Any) -> Solver:
        """The same adaptive solver with other settings."""
        settings = replace(self.settings, **changes)
        return replace(self, settings=settings, make_control=lambda: AdaptiveControl(settings, self.order))


@dataclass
class Problem:
    """A solve: dynamics, solver, observation times, the parameters that the dynamics depend on."""

    f: Dynamics
    solver: Solver
    make_observer: Callable[[], Observer | SampleObserver]
    params: tuple[Tensor, ...] = ()
    stats: Stats = field(default_factory=Stats)
    hooks: Hooks = field(default_factory=Hooks)
    event: EventFunction | None = None
    dense: bool = False  # keep the steps for the continuous solution
    compiled: bool = False  # take the steps in compiled graphs where that is possible
    steps: list[Any] = field(default_factory=list)
    event_time: float | None = None
    plan: list[tuple[int, int]] = field(default_factory=list)
    first_h: float | None = None
    saved_evaluations: int = 0  # those of the search for a first step size, where it was remembered
    on_done: Callable[[Problem], Any] | None = None  # called when the forward solve is finished

    @property
    def times(self) -> list[float]:
        """Shared observation times, with the event's time last where there is an event."""
        observer = self.make_observer()
        assert isinstance(observer, Observer)
        return observer.times if self.event_time is None else [*observer.times[:-1], self.event_time]

    @property
    def kind(self) -> Any:
        """What solves have in common that take alike steps: method, interval and tolerances."""
        s = self.solver.settings
        tolerances = tuple(x if isinstance(x, float) else None for x in (s.rtol, s.atol))
        return self.solver.method, self.make_observer().interval, tolerances

    def run(self, y0: Tensor, accepted: Callable[[Any], None] | None = None) -> Tensor:
        """Solve forwards; grad mode decides whether the solve is recorded by autograd."""
        observer = self.make_observer()
        before = self.f.evaluations
        control = self.solver.make_control()
        out: Integration = integrate(
            self.f, y0, self.solver.stepper, control, observer, event=self.event,
            hooks=replace(self.hooks, accepted=accepted), keep=self.dense,
        )  # fmt: skip
        self.steps, self.event_time, self.plan, self.first_h = (
            out.steps,
            out.event_time,
            observer.plan,
            out.first_h,
        )
        self.stats.forward_evaluations += self.f.evaluations - before
        self.stats.accepted_steps += out.accepted_steps
        self.stats.rejected_steps += out.rejected_steps
        if self.on_done is not None:
            self.on_done(self)
        return out.ys

    def again(self) -> Problem:
        """The same solve with the same steps and statistics of its own (for second derivatives)."""
        solver = self.solver if self.first_h is None else self.solver.starting_with(self.first_h)
        return replace(self, solver=solver, stats=Stats(), dense=False, steps=[], hooks=Hooks(), on_done=None)


class Only(tuple[Tensor, ...]):
    """Tensors to differentiate in, and no others, not even parameters of a module."""


def find_parameters(f: Callable[..., Any], dynamics: Dynamics, t0: float, y0: Tensor,
                    given: Sequence[Tensor] | None = None) -> tuple[Tensor, ...]:  # fmt: skip
    """Tensors requiring grad that the dynamics depend on.

    A module names its parameters; tensors ``given`` come besides them. Of any other callable, the tensors given are
    taken or, where None are, the leaves in the graph of one recorded evaluation and those that its code names (see
    ``depends.reachable``), so that closures, partials and bound methods need no declaration.
    """
    if isinstance(given, Only):
        return tuple(separate(_distinct(given)))
    if isinstance(f, torch.nn.Module):
        own = _distinct(f.parameters())
        return tuple(_distinct([*own, *separate(_distinct([*module_attributes(f), *(given or ())], own), own)]))
    if given is not None:
        return tuple(separate(_distinct(given)))
    if not torch.is_grad_enabled():
        return ()
    return tuple(_distinct([*_recorded(dynamics, t0, y0), *reachable(f)]))


def _distinct(tensors: Iterable[Tensor], besides: Sequence[Tensor] = ()) -> list[Tensor]:
    """Those that require grad, each once, without those of ``besides``."""
    known = {id(x) for x in besides}
    return list({id(x): x for x in tensors if x.requires_grad and id(x) not in known}.values())


def _recorded(dynamics: Dynamics, t0: float, y0: Tensor) -> list[Tensor]:
    """The leaves of one evaluation; copies of y that f made to differentiate in, which die with the graph, are none."""

    def evaluate() -> list[weakref.ref[Tensor]]:
        with torch.enable_grad():
            return [weakref.ref(x) for x in leaves(dynamics.checked(dynamics.time(t0), y0.detach()))]

    alive = [reference() for reference in evaluate()]
    return [x for x in alive if x is not None]
