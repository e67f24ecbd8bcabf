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
from quadjoint.autograd.recorded import Recording, record_and_count, share_numbers
from quadjoint.solver.dynamics import Dynamics
from quadjoint.solver.protocols import Time, VectorField
from quadjoint.solver.spec import Spec


class Only(tuple[Tensor, ...]):
    """Tensors to differentiate in, and no others, not even parameters of a module."""


@dataclass(frozen=True)
class First:
    """f(t0, y0) with its graph; the solve does not make this evaluation again.

    Its input is a view of ``y0``, so that f may use y0 by itself as well. ``params`` are the tensors to differentiate
    in: the parameters of a module, those given, and whatever else the evaluation depends on but that input. ``met`` are
    those among them that it does depend on.
    """

    t: Time
    nudge: int
    y0: Tensor
    recording: Recording
    params: tuple[Tensor, ...]
    met: tuple[Tensor, ...]
    activation_bytes: int | None  # that autograd keeps for the evaluation; None if it cannot be counted

    @classmethod
    def record(cls, spec: Spec, y0: Tensor, snapshot: Snapshot, given: Sequence[Tensor] | None) -> First:
        """Evaluate f where the solve will evaluate it first."""
        t, nudge, learnable = spec.start, _first_nudge(spec), snapshot.learnable_tensors()
        y = y0.view_as(y0) if y0.requires_grad else y0.detach().requires_grad_()

        def evaluate() -> tuple[Recording, int | None]:
            spec.f.evaluations += 1
            recording, count = record_and_count(spec.f.checked, spec.f.time(t, nudge), y, learnable)
            spec.f.evaluations += count is None
            return recording, count

        frontier = Frontier([y, *learnable, *(given or ())])
        recording, count = evaluate()
        strangers = frontier.strangers(recording.out)
        if are_referenced(strangers):
            frontier = Frontier([*frontier.tensors, *strangers])
        else:
            # Leaves that f made itself, as a copy of y to differentiate in, die with the graph and are no parameters.
            weak = [weakref.ref(x) for x in strangers]
            del recording, strangers
            frontier = Frontier([*frontier.tensors, *(x for ref in weak if (x := ref()) is not None)])
            recording, count = evaluate()
        params, met = _parameters(spec.f.f, recording, frontier, given)
        return cls(t, nudge, y0, recording, params, met, count)

    @property
    def value(self) -> Tensor:
        return self.recording.out.detach()

    def is_at(self, t: Time, y: Tensor, nudge: int) -> bool:
        """Whether this is the evaluation at ``t`` and ``y``; times of samples are known by their tensor."""
        same = t is self.t if isinstance(t, Tensor) or isinstance(self.t, Tensor) else t == self.t
        return same and nudge == self.nudge and share_numbers(y, self.recording.y)

    def stands_alone(self) -> bool:
        """Whether a gradient in a parameter does not lead through y0, from which autograd would not take it apart."""
        params = {id(p) for p in self.params}
        made = {p.grad_fn for p in self.params if p.grad_fn is not None}
        y = self.recording.y
        return not any(node in made or id(getattr(node, "variable", None)) in params for node in upstream(y))

    def reentrant(self) -> bool:
        """Whether a checkpoint inside of f lets only ``backward()`` pass, and no single gradient."""
        return any(private.is_reentrant_checkpoint(node) for node in upstream(self.recording.out))


class StartedDynamics(VectorField):
    """The dynamics of a solve whose first evaluation has been made; ``recorded`` answers it with its graph."""

    def __init__(self, f: Dynamics, first: First | None, *, recorded: bool = False) -> None:
        self.f, self.first, self.recorded = f, first, recorded

    @property
    def dynamics(self) -> Dynamics:
        return self.f

    def as_tensors(self, times: Sequence[float]) -> Sequence[Tensor]:
        return self.f.as_tensors(times)

    def __call__(self, t: Time, y: Tensor, nudge: int = 0) -> Tensor:
        first = None if self.first is None else self.begun(t, y, nudge)
        if first is None:
            return self.f(t, y, nudge)
        return first.recording.out if self.recorded else first.value

    def begun(self, t: Time, y: Tensor, nudge: int) -> First | None:
        """The first evaluation, if this is it; it is asked for once, and then not held any longer."""
        if self.first is None:
            return None
        first, self.first = self.first, None
        return first if first.is_at(t, y, nudge) else None


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
