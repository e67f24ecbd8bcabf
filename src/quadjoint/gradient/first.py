"""The first evaluation of a solve, recorded: it names the parameters of f and shows what an evaluation keeps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.autograd.captured import Snapshot
from quadjoint.autograd.leaves import Frontier, are_referenced, separate, upstream
from quadjoint.autograd.recorded import Recording, record_and_count
from quadjoint.solver.dynamics import Dynamics
from quadjoint.solver.protocols import Time, VectorField
from quadjoint.solver.spec import Spec


class Only(tuple[Tensor, ...]):
    """Tensors to differentiate in, and no others, not even parameters of a module."""


@dataclass(frozen=True)
class First:
    """f(t0, y0) with its graph; the solve does not make this evaluation again.

    ``params`` are the tensors to differentiate in: the parameters of a module, those given, and whatever else the
    evaluation depends on. ``met`` are those among them that it does depend on.
    """

    t: Time
    nudge: int
    recording: Recording
    params: tuple[Tensor, ...]
    met: tuple[Tensor, ...]
    activation_bytes: int | None  # that autograd keeps for the evaluation; None if it cannot be counted

    @classmethod
    def record(cls, spec: Spec, y0: Tensor, snapshot: Snapshot, given: Sequence[Tensor] | None) -> First:
        """Evaluate f where the solve will evaluate it first."""
        t, nudge, learnable = spec.start, _first_nudge(spec), snapshot.learnable_tensors()

        def evaluate() -> tuple[Recording, int | None]:
            spec.f.evaluations += 1
            recording, count = record_and_count(spec.f.checked, spec.f.time(t, nudge), y0, learnable)
            spec.f.evaluations += count is None
            return recording, count

        frontier = Frontier([*learnable, *(given or ())])
        recording, count = evaluate()
        strangers = frontier.strangers(recording.out, (recording.y,))
        if are_referenced(strangers):
            frontier = Frontier([*frontier.tensors, *strangers])
        else:
            # Leaves that f made itself, as a copy of y to differentiate in, die with the graph and are no parameters.
            weak = [weakref.ref(x) for x in strangers]
            del recording, strangers
            frontier = Frontier([*frontier.tensors, *(x for ref in weak if (x := ref()) is not None)])
            recording, count = evaluate()
        params, met = _parameters(spec.f.f, recording, frontier, given)
        return cls(t, nudge, recording, params, met, count)

    @property
    def value(self) -> Tensor:
        return self.recording.out.detach()

    def is_at(self, t: Time, nudge: int) -> bool:
        """Whether the solve begins with an evaluation at time ``t``; times of samples are known by their tensor."""
        same = t is self.t if isinstance(t, Tensor) or isinstance(self.t, Tensor) else t == self.t
        return same and nudge == self.nudge

    def stands_alone(self) -> bool:
        """Whether the graph can be differentiated apart from what y0 was computed by.

        It leads to y0 itself. If a parameter is behind y0 too, or y0 is watched, it is not taken apart.
        """
        y = self.recording.y
        if y.grad_fn is None:
            return not private.has_hooks(y)
        if private.has_hooks(y) or y.retains_grad:
            return False
        params = {id(p) for p in self.params}
        made = {p.grad_fn for p in self.params if p.grad_fn is not None}
        return not any(node in made or id(getattr(node, "variable", None)) in params for node in upstream(y))

    def reentrant(self) -> bool:
        """Whether a checkpoint inside of f lets only ``backward()`` pass, and no single gradient."""
        return any(private.is_reentrant_checkpoint(node) for node in upstream(self.recording.out))


class WatchedDynamics(VectorField):
    """Dynamics some of whose evaluations are answered or recorded by a subclass."""

    def __init__(self, f: Dynamics) -> None:
        self.f = f

    @property
    def dynamics(self) -> Dynamics:
        return self.f

    def as_tensors(self, times: Sequence[float]) -> Sequence[Tensor]:
        return self.f.as_tensors(times)


class StartedDynamics(WatchedDynamics):
    """The dynamics of a solve whose first evaluation has been made."""

    def __init__(self, f: Dynamics, first: First, value: Tensor) -> None:
        super().__init__(f)
        self.first, self.value, self.used = first, value, False

    def __call__(self, t: Time, y: Tensor, nudge: int = 0) -> Tensor:
        if not self.used:
            self.used = True
            if self.first.is_at(t, nudge):
                return self.value
        return self.f(t, y, nudge)


def _first_nudge(spec: Spec) -> int:
    """On which side of the initial time the solve evaluates f first."""
    if spec.samples is not None:
        return 0
    first, last = spec.interval
    if spec.solver.make_control().perturb:
        return 1 if last > first else -1
    return spec.solver.settings.first_nudge(first, last)


def _parameters(
    f: Callable[..., Any], recording: Recording, frontier: Frontier, given: Sequence[Tensor] | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Tensors to differentiate in, and those of them that an evaluation met."""
    asked = distinct(given or ())
    met = [x for x in frontier.explore(recording.out)[0] if x is not recording.y]
    if isinstance(given, Only):
        params = separate(asked)
        return tuple(params), tuple(x for x in met if any(x is p for p in params))
    own = distinct(f.parameters()) if isinstance(f, torch.nn.Module) else []
    params = separate(distinct([*own, *asked, *met]))
    return tuple(params), tuple(met)


def distinct(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Those that require grad, each once."""
    return list({id(x): x for x in tensors if x.requires_grad}.values())
