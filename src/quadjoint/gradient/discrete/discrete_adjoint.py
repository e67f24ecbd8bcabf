"""The exact transpose of the forward Runge-Kutta solve.

A step computes stage inputs Y_i = y0 + h sum_j a_ij k_j, stages k_i = f(t_i, Y_i), its end y1 = y0 + h sum b_i k_i and
observations y0 + h sum b_i(theta) k_i. Given dL/dy1 and the gradients of the observations inside, the transpose runs
through the stages from last to first: with lambda_i = dL/dk_i and mu_i = lambda_i^T df/dy(t_i, Y_i),

    lambda_j += h a_ij mu_i,   dL/dy0 += mu_i,   dL/dtheta += lambda_i^T df/dtheta(t_i, Y_i).

No step is rejected, no observation breaks the sweep, no second tolerance is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quadjoint.autograd.aliases import Aliases
from quadjoint.autograd.recorded import NOTHING, is_recorded_already
from quadjoint.errors import nearest
from quadjoint.gradient.base import Gradient, Gradients, Task
from quadjoint.gradient.choose.cost import decide, predict
from quadjoint.gradient.choose.measure import sizes_of
from quadjoint.gradient.cotangents import Cotangents
from quadjoint.gradient.discrete.checkpoints import StepRecorder
from quadjoint.gradient.discrete.deferred import DeferredLinear
from quadjoint.gradient.discrete.implicit_sweep import ImplicitSweep
from quadjoint.gradient.discrete.sweep import clock_sweep, step_sweep, sweep
from quadjoint.gradient.discrete.tape import Tape
from quadjoint.gradient.discrete.transpose import StepTransposer
from quadjoint.gradient.first import First
from quadjoint.gradient.products import Products
from quadjoint.gradient.proof import Beginning
from quadjoint.solver.integrate import Integration
from quadjoint.solver.methods.implicit import ImplicitRungeKutta
from quadjoint.solver.spec import Spec

MODES = ("auto", "joint", "stacked")
ACTIVATIONS = 2**24  # bytes that are kept if nothing else is said


@dataclass(frozen=True)
class DiscreteAdjoint(Gradient):
    """Exact gradients of the discretised solve from stored stages or states, and a few activations.

    Args:
        keep: "stages" stores every stage input; "states" one state a step, and recomputes the stages.
        max_states: at most so many stored states; the rest is recomputed from checkpoints.
        mode: "joint" one product in state and parameters per stage, "stacked" parameter products of linear layers of
            many stages at once; "auto" chooses by size.
        activations: with stored stages, activations of the forward pass are kept up to so many bytes, and only the
            evaluations beyond are made again. 0 keeps none. None is half of the limit of memory or, without one,
            16 MiB.
        memory_limit: bytes for all that is kept; as they are used up, stages are given up for states, then states for
            checkpoints. None sets no limit.

    >>> import torch, quadjoint as qj
    >>> w = torch.tensor(0.5, requires_grad=True)
    >>> t = torch.tensor([0.0, 1.0])
    >>> ys = qj.odeint(lambda t, y: -w * y, torch.ones(1), t, gradient=qj.DiscreteAdjoint(max_states=2))
    >>> ys[-1].sum().backward()
    >>> round(w.grad.item(), 2)  # -exp(-w)
    -0.61
    """

    keep: str = "stages"
    max_states: int | None = None
    mode: str = "auto"
    activations: int | None = None
    memory_limit: int | None = None
    name = "discrete"
    exact_clock = True

    def __post_init__(self) -> None:
        if self.keep not in ("stages", "states"):
            raise ValueError(f"keep must be 'stages' or 'states'; got {self.keep!r}.")
        if self.mode not in MODES:
            raise ValueError(f"mode = {self.mode!r} is not known.{nearest(self.mode, MODES)}")
        if self.max_states is not None and self.max_states < 1:
            raise ValueError(f"max_states must be at least 1; got {self.max_states}.")
        if self.activations is not None and self.activations < 0:
            raise ValueError(f"activations are bytes, at least 0; got {self.activations}.")

    def check(self, spec: Spec) -> None:
        if not spec.solver.stepper.transposable:
            others = "'gq' or 'adjoint'" if not spec.solver.stepper.recordable else "'direct', 'gq' or 'adjoint'"
            raise ValueError(
                f"gradient='discrete' transposes Runge-Kutta steps, which method {spec.solver.name!r} does not take; "
                f"use gradient={others}."
            )

    def recorder(self, task: Task, first: First | None) -> _Memory:
        aliases, stepper = Aliases(task.params), task.spec.solver.stepper
        stages = self.keep == "stages" and self.max_states is None
        whole = stages and stepper.eager is not stepper and not aliases  # a step is one graph, and so is its transpose
        stages = whole or (stages and stepper.keeps_inputs)
        # Products of implicit steps are stacked in any case, those of whole steps are in their graphs.
        given = whole or isinstance(stepper.eager, ImplicitRungeKutta)
        mode = "joint" if given else self._mode(task, first)
        if aliases and mode != "joint":
            mode = "joint"
            task.say("products are joint, as parameters have hooks")
        elif self.mode == "auto" and not given:
            task.say(f"products are {mode}")
        deferred = DeferredLinear(task.params) if mode == "stacked" else None
        left = 0
        if stages and not given and not is_recorded_already() and task.spec.solver.points is None:
            size = None if first is None else first.activation_bytes
            left = 0 if size is None else self._allowance // max(1, size)
        within = aliases if aliases else deferred or NOTHING
        # The first evaluation was recorded before these: where they are needed, the backward pass makes it again.
        dynamics = Tape(task.f, first, left=left, within=within, keep_first=within is NOTHING)
        states = None if self.memory_limit is None else self.memory_limit // (2 if left else 1)
        memory = _Memory(dynamics, stages=stages, max_states=self.max_states, max_bytes=states)
        memory.task, memory.aliases, memory.deferred, memory.whole = task, aliases, deferred, whole
        if first is not None:
            memory.activation_bytes, memory.beginning = first.activation_bytes or 0, Beginning(first)
        return memory

    @property
    def _allowance(self) -> int:
        """Bytes of activations that may be kept."""
        given = (self.activations, None if self.memory_limit is None else self.memory_limit // 2)
        return min((limit for limit in given if limit is not None), default=ACTIVATIONS)

    def _mode(self, task: Task, first: First | None) -> str:
        """The mode asked for, or that with the least predicted cost."""
        if self.mode != "auto":
            return self.mode
        costs = predict(sizes_of(task, None if first is None else first.activation_bytes), self._allowance)
        return decide({name: costs[name] for name in ("joint", "stacked")}).name

    def backward(self, task: Task, run: Integration, memory: Any, cotangents: Cotangents) -> Gradients:
        if task.spec.solver.points is not None:
            return clock_sweep(task, memory, cotangents)
        products = Products(task, memory.aliases)
        if isinstance(task.spec.solver.eager, ImplicitRungeKutta):
            if memory.beginning is not None:
                memory.beginning.prove(task)
            size, most = memory.activation_bytes, self.memory_limit
            a = ImplicitSweep(task, cotangents, products, activation_bytes=size, most=most).run(memory)
            return Gradients(cotangents.at_start(a), products.finish())
        transposer = StepTransposer(task, cotangents)
        if memory.whole and memory.stages:
            a = step_sweep(transposer, products, memory)
        else:
            a = sweep(transposer, products, memory, memory.deferred)
        return Gradients(cotangents.at_start(a), products.finish())


class _Memory(StepRecorder):
    """The recorded steps, and how their graphs were recorded."""

    task: Task
    aliases: Aliases
    deferred: DeferredLinear | None
    whole: bool
    activation_bytes: int = 0
    beginning: Beginning | None = None

    def _keep_states(self) -> None:
        self.task.say("memory ran short, so stages are computed again")
        super()._keep_states()
