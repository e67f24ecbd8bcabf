"""Plain backpropagation through the operations of the solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from quadjoint.autograd.aliases import Aliases
from quadjoint.gradient.base import Arranger, Gradient, Gradients, Outcome, Part, Task, differentiate, touch
from quadjoint.gradient.cotangents import Cotangents
from quadjoint.gradient.discrete.discrete_adjoint import DiscreteAdjoint
from quadjoint.gradient.first import First, StartedDynamics
from quadjoint.solver.independent.loop import SampleIntegrator
from quadjoint.solver.integrate import Integration, Integrator
from quadjoint.solver.interpolation import DenseOutput
from quadjoint.solver.protocols import Step, VectorField
from quadjoint.solver.spec import Spec


@dataclass(frozen=True)
class Direct(Gradient):
    """Backpropagate through every operation of the solve: exact, and as memory-hungry as all activations together.

    Args:
        memory_limit: bytes of activations that may be kept. The steps after they are spent are differentiated by
            ``DiscreteAdjoint``, which gives the same gradient; None sets no limit.

    >>> import torch, quadjoint as qj
    >>> w = torch.tensor(0.5, requires_grad=True)
    >>> t = torch.tensor([0.0, 1.0])
    >>> ys = qj.odeint(lambda t, y: -w * y, torch.ones(1), t, gradient=qj.Direct())
    >>> ys[-1].sum().backward()
    >>> round(w.grad.item(), 2)  # -exp(-w)
    -0.61
    """

    memory_limit: int | None = None
    name = "direct"
    exact_clock = True

    def check(self, spec: Spec) -> None:
        if not spec.solver.stepper.recordable:
            raise ValueError(
                f"gradient='direct' cannot record the steps of method {spec.solver.name!r}; use gradient='gq' or "
                "'adjoint', or solve under torch.no_grad()."
            )

    def apply(self, task: Task, y0: Tensor, first: First) -> Outcome:
        spec, before = task.spec, task.f.evaluations
        stepper = spec.solver.stepper
        if stepper.twice is not stepper and spec.solver.points is None and not Aliases(task.params):
            recorded = _Recorded(spec, self._is_spent(task, first, before, self.memory_limit))
            try:
                return differentiate(_Once(), task, recorded.begin, y0, recorded)
            except _SpentError:
                task.stats.forward_evaluations += task.f.evaluations - before
                task.say("by discrete, as the memory limit was used")
                return DiscreteAdjoint(memory_limit=self.memory_limit).apply(task, y0, first)
        # The first evaluation was of another tensor if y0 has been made to depend on the initial time since.
        same = y0 is first.y0
        dynamics = StartedDynamics(spec.f, first if same else None, recorded=True)
        integrator = spec.begin(first.recording.y if same else y0, dynamics)
        # The other half is for what the rest of the solve keeps.
        half = None if self.memory_limit is None else self.memory_limit // 2
        run = integrator.run(self._is_spent(task, first, before, half))
        task.count(run, task.f.evaluations - before)
        unused = [p for p in task.params if not any(p is x for x in first.met)]
        out = Outcome(touch(run.ys, unused), run, integrator.observer, [Part(run)])
        if integrator.finished:
            return out
        rest = self._go_on(task, integrator)
        return Outcome(torch.cat([out.ys, rest.ys]), rest.run, out.observer, [*out.parts, *rest.parts])

    def _is_spent(self, task: Task, first: First, before: int, limit: int | None) -> Callable[[], bool] | None:
        """Whether so many bytes are used, of a solve that can be differentiated in another way."""
        solver = task.spec.solver
        if limit is None or not solver.stepper.transposable or solver.points is not None:
            return None
        size = (first.activation_bytes or 0) + task.f.shape.numel() * task.f.dtype.itemsize
        allowed = max(1, limit // max(1, size))
        return lambda: task.f.evaluations - before >= allowed

    def _go_on(self, task: Task, paused: Integrator | SampleIntegrator) -> Outcome:
        """Differentiate the rest of a solve by its transpose."""
        assert self.memory_limit is not None
        rest: Any = paused.rest()
        task = replace(task, spec=replace(task.spec, make_observer=rest))
        how = DiscreteAdjoint(memory_limit=self.memory_limit // 2)
        task.say(f"from {paused.place} on by discrete, as half of the memory limit is used")

        def begin(y: Tensor, f: Any, accepted: Any) -> Integrator | SampleIntegrator:
            return paused.resume(y, f, accepted=accepted, observer=rest())

        return differentiate(how, task, begin, paused.y, how.recorder(task, None))


class _Once(Gradient):
    """Backpropagation through steps that can be differentiated once, apart from autograd's graph around the solve.

    These are compiled steps and implicit ones. For a gradient that will be differentiated again, the solve is repeated
    with steps that can be differentiated twice, as for every gradient that is not direct.
    """

    name = "direct"

    def backward(self, task: Task, run: Integration, memory: Any, cotangents: Cotangents) -> Gradients:
        times, grads, rows = cotangents.as_made()
        outs, n = [memory.ys], len(memory.ys)
        if len(grads) > n:  # states were asked for later
            with torch.enable_grad():
                outs.append(DenseOutput(run.steps).at(times[n:].tolist(), None if rows is None else rows[n:]))
        inputs = (memory.start, *task.params)
        seeds = grads.split([len(out) for out in outs])
        a, *found = torch.autograd.grad(outs, inputs, seeds, retain_graph=True, allow_unused=True)
        return Gradients(a, found)


class _SpentError(Exception):
    """The bytes that may be kept are used up before the end."""


class _Recorded:
    """A solve with a graph of its own, which begins at a copy of the initial state; given up once it ``is_spent``."""

    def __init__(self, spec: Spec, is_spent: Callable[[], bool] | None) -> None:
        self.spec, self.is_spent = spec, is_spent
        self.dynamics: VectorField = spec.f
        self.observer: Arranger = spec.make_observer()
        self.start = self.ys = torch.empty(0)

    def begin(self, y: Tensor, f: VectorField, accepted: Any) -> _Recorded:
        self.start = y.detach().requires_grad_()
        return self

    def __call__(self, step: Step) -> None:
        """Of an accepted step nothing is kept but the graph."""

    def run(self) -> Integration:
        with torch.enable_grad():
            running = self.spec.begin(self.start)
            run, self.observer = running.run(self.is_spent), running.observer
        if not running.finished:
            raise _SpentError
        self.ys = run.ys
        return replace(run, ys=run.ys.detach())
