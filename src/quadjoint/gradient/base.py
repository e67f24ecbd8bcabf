"""What a gradient method is, and the one autograd function behind all that are not direct."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.autograd.captured import Snapshot, without_autocast
from quadjoint.autograd.gates import Gates
from quadjoint.gradient.cotangents import Cotangents, Mailbox, Query
from quadjoint.gradient.first import First
from quadjoint.solver.dynamics import Dynamics
from quadjoint.solver.integrate import Integration
from quadjoint.solver.interpolation import DenseOutput
from quadjoint.solver.protocols import Step, VectorField
from quadjoint.solver.spec import Spec
from quadjoint.solver.stats import Stats


@dataclass(frozen=True)
class Task:
    """A solve to be differentiated: what to solve, in which tensors, and where to note the figures."""

    spec: Spec
    params: tuple[Tensor, ...]
    snapshot: Snapshot
    stats: Stats
    complete: bool = False  # the user has said that no other tensors are to be differentiated in

    @property
    def f(self) -> Dynamics:
        return self.spec.f

    def say(self, clause: str) -> None:
        """Add to the reason what is known now of how the solve is differentiated."""
        if clause not in self.stats.reason:
            self.stats.reason = f"{self.stats.reason}; {clause}" if self.stats.reason else clause

    def count(self, run: Integration, evaluations: int) -> None:
        """Note the figures of a forward solve, or of a part of one."""
        self.stats.forward_evaluations += evaluations
        accepted, rejected = run.counts
        self.stats.accepted_steps += accepted
        self.stats.rejected_steps += rejected


@dataclass(frozen=True)
class Part:
    """A solve whose steps are kept for the continuous solution.

    ``mailbox`` takes gradients of states that autograd lacks.
    """

    run: Integration
    mailbox: Mailbox | None = None
    link: Tensor | None = None

    @property
    def steps(self) -> list[Step]:
        return self.run.steps

    def states(self, times: Sequence[float], rows: Tensor | None) -> Tensor:
        """States at times within the part, those of single samples if ``rows`` are given."""
        return DenseOutput(self.steps).at(times, rows)


class Arranger(Protocol):
    """Puts observations in the order of the result."""

    def arrange(self, values: Tensor) -> Tensor: ...


@dataclass
class Outcome:
    """What a differentiable solve gives: observations as they were collected, and the steps, if they are kept."""

    ys: Tensor
    run: Integration
    observer: Arranger
    parts: list[Part] = field(default_factory=list)


@dataclass(frozen=True)
class Gradients:
    """Gradients in the initial state, the parameters and, on a differentiable grid, the times."""

    y0: Tensor
    params: Sequence[Tensor | None]
    points: Tensor | None = None
    observed: Tensor | None = None


class Recorder(Protocol):
    """What a forward solve leaves to its backward pass."""

    @property
    def dynamics(self) -> VectorField:
        """The dynamics to solve with, whose evaluations the recorder may watch."""

    def __call__(self, step: Step) -> None:
        """Take in an accepted step."""


class Gradient:
    """How a solve is differentiated. Subclasses are frozen dataclasses that hold only their settings."""

    name: ClassVar[str]
    exact_clock: ClassVar[bool] = False  # differentiates a fixed grid exactly in its times
    needs_observations: ClassVar[bool] = False  # in the backward pass, so that they must not be changed before

    def check(self, spec: Spec) -> None:
        """Refuse in words a solve that this method cannot differentiate."""

    def adapt(self, spec: Spec) -> Spec:
        """The solve as this method needs it."""
        return spec

    def apply(self, task: Task, y0: Tensor, first: First) -> Outcome:
        """Solve such that the result can be differentiated."""
        return differentiate(self, task, task.spec.begin, y0, self.recorder(task, first))

    def recorder(self, task: Task, first: First | None) -> Recorder:
        """Receives the accepted steps of the forward solve, and is handed to ``backward``."""
        raise NotImplementedError

    def backward(self, task: Task, run: Integration, memory: Any, cotangents: Cotangents) -> Gradients:
        raise NotImplementedError


class Running(Protocol):
    """A solve that is ready to run."""

    @property
    def observer(self) -> Arranger: ...

    def run(self) -> Integration: ...


Begin = Callable[[Tensor, VectorField, Callable[[Step], None]], Running]


def differentiate(method: Gradient, task: Task, begin: Begin, y0: Tensor, recorder: Recorder) -> Outcome:
    """Run a solve outside of autograd, whose gradients ``method`` will compute."""
    spec = task.spec
    points = spec.solver.points if method.exact_clock else None
    observed = spec.make_observer().points if method.exact_clock else None
    solved = _Solved(method, task, begin, recorder)
    ys, link = _Solve.apply(solved, y0, points, observed, *task.params)
    assert solved.run is not None and solved.observer is not None
    part = Part(solved.run, solved.mailbox, link)
    return Outcome(ys, solved.run, solved.observer, [part])


@dataclass
class _Solved:
    """A solve and what its backward pass needs."""

    method: Gradient
    task: Task
    begin: Begin
    memory: Any
    run: Integration | None = None
    observer: Arranger | None = None
    mailbox: Mailbox = field(default_factory=Mailbox)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, solved: _Solved, y0: Tensor, points: Tensor | None, observed: Tensor | None, *params: Tensor
    ) -> tuple[Tensor, Tensor]:
        f = solved.task.f
        before = f.evaluations
        running = solved.begin(y0.detach(), solved.memory.dynamics, solved.memory)
        run, solved.observer = running.run(), running.observer
        solved.task.count(run, f.evaluations - before)
        ys = run.ys
        solved.run = replace(run, ys=ys.new_empty(0))
        ctx.run, ctx.method, ctx.task = solved.run, solved.method, solved.task
        ctx.memory, ctx.mailbox = solved.memory, solved.mailbox
        ctx.save_for_backward(y0, points, observed, ys if solved.method.needs_observations else None, *params)
        return ys, ys.new_zeros(())

    @staticmethod
    @private.outside_of_compile
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        y0, points, observed, ys, *params = ctx.saved_tensors  # which autograd refuses if one was changed in place
        method, task, run = ctx.method, ctx.task, ctx.run
        queries = ctx.mailbox.take()
        with task.snapshot.reinstated(), task.f.casting_once(), _one_at_a_time(method):
            if torch.is_grad_enabled():
                return None, *_differentiable(task, run, y0, points, observed, grads[0], queries)
            with private.keep_buffers():
                cotangents = Cotangents.of(task.spec, run, grads[0], queries)
                out = method.backward(task, run if ys is None else replace(run, ys=ys), ctx.memory, cotangents)
        if not private.graph_is_kept():
            ctx.memory = ctx.run = None  # as autograd frees what it saved, also while the result of the solve lives on
        found = [torch.zeros_like(p) if g is None else g for g, p in zip(out.params, params, strict=True)]
        return None, out.y0, out.points, out.observed, *found


@contextmanager
def _one_at_a_time(method: Gradient) -> Iterator[None]:
    """Say in words that a backward pass cannot be vectorised, which torch notices only in some operation inside."""
    try:
        yield
    except RuntimeError as error:
        if "vmap" not in str(error) and "Batching rule" not in str(error):
            raise
        raise ValueError(
            f"gradient={method.name!r} computes one gradient at a time: is_grads_batched=True, and jacobian(...) with "
            "vectorize=True, need gradient='direct'; or leave them out."
        ) from error


def _differentiable(
    task: Task,
    run: Integration,
    y0: Tensor,
    points: Tensor | None,
    observed: Tensor | None,
    grad_ys: Tensor,
    queries: Sequence[Query],
) -> list[Tensor | None]:
    """Gradients that can be differentiated again (``create_graph=True``): solve once more, recorded by autograd."""
    solver = task.spec.solver
    if not solver.stepper.recordable:
        raise ValueError(
            f"create_graph=True needs steps that autograd can record, and those of method {solver.name!r} cannot be; "
            "use a method of this library, such as 'dopri5' or, for stiff problems, 'kvaerno5'."
        )
    gates = Gates()
    y0 = gates(y0)
    points, observed = (None if x is None else gates(x) for x in (points, observed))
    again = task.spec.retrace(y0, run, points=points, observed=observed)
    outs, seeds = [again.ys], [grad_ys]
    if queries:
        dense = DenseOutput(again.steps)
        outs += [dense.at(query.times, query.rows) for query in queries]
        seeds += [query.grads for query in queries]
    return gates.gradients(outs, [y0, points, observed, *task.params], seeds)


class _Answer(torch.autograd.Function):
    """States of the continuous solution; their gradients go to the backward pass of the solve."""

    @staticmethod
    def forward(ctx: Any, part: Part, times: Sequence[float], rows: Tensor | None, link: Tensor) -> Tensor:
        ctx.part, ctx.times, ctx.rows = part, times, rows
        return part.states(times, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        assert ctx.part.mailbox is not None
        ctx.part.mailbox.put(ctx.times, ctx.rows, grads[0])
        return None, None, None, grads[0].new_zeros(())


def evaluate(part: Part, times: Sequence[float], rows: Tensor | None = None) -> Tensor:
    """States of the continuous solution at times within a part of it, differentiable as its observations are."""
    with without_autocast(part.run.ys.device.type):
        return _evaluate(part, times, rows)


def _evaluate(part: Part, times: Sequence[float], rows: Tensor | None) -> Tensor:
    if part.link is not None and part.link.requires_grad and torch.is_grad_enabled():
        return _Answer.apply(part, times, rows, part.link)
    return part.states(times, rows)


class _Touch(torch.autograd.Function):
    """The identity, which gives zeros as the gradient of parameters that nothing depends on."""

    @staticmethod
    def forward(ctx: Any, ys: Tensor, *params: Tensor) -> Tensor:
        ctx.save_for_backward(*params)
        return ys.view_as(ys)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return grads[0], *(torch.zeros_like(p) for p in ctx.saved_tensors)


def touch(ys: Tensor, params: Sequence[Tensor]) -> Tensor:
    """Let autograd see that ``ys`` may depend on ``params``, as it sees of every solve whose gradient is computed."""
    return _Touch.apply(ys, *params) if params and torch.is_grad_enabled() else ys
