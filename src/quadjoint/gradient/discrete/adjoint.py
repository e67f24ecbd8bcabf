"""The exact transpose of the forward Runge-Kutta solve.

A step computes stage inputs Y_i = y0 + h sum_j a_ij k_j, stages k_i = f(t_i, Y_i), its end y1 = y0 + h sum b_i k_i and
observations y0 + h sum b_i(theta) k_i. Given dL/dy1 and the gradients of the observations inside, the transpose runs
through the stages from last to first: with lambda_i = dL/dk_i and mu_i = lambda_i^T df/dy(t_i, Y_i),

    lambda_j += h a_ij mu_i,   dL/dy0 += mu_i,   dL/dtheta += lambda_i^T df/dtheta(t_i, Y_i).

No step is rejected, no observation breaks the sweep, no second tolerance is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from quadjoint.autograd.tape import NOTHING, Tape, keeping_is_pointless
from quadjoint.errors import nearest
from quadjoint.gradient.base import Gradient, Gradients
from quadjoint.gradient.choose.cost import Sizes, cheapest, predict
from quadjoint.gradient.choose.sizes import known, note_evaluation, remember, sizes_of
from quadjoint.gradient.discrete.checkpoints import Recorder, backwards
from quadjoint.gradient.discrete.deferred import DeferredLinear
from quadjoint.gradient.discrete.parallel import may_be_parallel, parallel_sweep
from quadjoint.gradient.discrete.sweeps import clock_sweep, compiled_sweep, replay, stage_sweep
from quadjoint.gradient.discrete.transpose import Observations, StepTransposer
from quadjoint.gradient.products import Products
from quadjoint.solver.methods.compiled import CompiledRungeKutta
from quadjoint.solver.problem import Problem

MODES = ("auto", "joint", "stacked", "parallel")


@dataclass(frozen=True)
class DiscreteAdjoint(Gradient):
    """Exact gradients of the discretised solve from stored stages or states, and a few activations.

    Args:
        keep: "stages" stores every stage input; "states" one state a step, and recomputes the stages.
        max_states: at most so many stored states; the rest is recomputed from checkpoints.
        mode: "joint" one product in state and parameters per stage, "stacked" parameter products of many stages at
            once, "parallel" all stages at once with per-sample Jacobians; "auto" chooses by size.
        activations: with stored stages, activations of the forward pass are kept up to so many bytes, and only the
            evaluations beyond are made again. 0 keeps none.

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
    activations: int = 2**24
    name = "discrete"
    exact_clock = True
    sample_times = "interpolate"

    def __post_init__(self) -> None:
        if self.keep not in ("stages", "states"):
            raise ValueError(f"keep must be 'stages' or 'states'; got {self.keep!r}.")
        if self.mode not in MODES:
            raise ValueError(f"mode = {self.mode!r} is not known.{nearest(self.mode, MODES)}")
        if self.max_states is not None and self.max_states < 1:
            raise ValueError(f"max_states must be at least 1; got {self.max_states}.")
        if self.activations < 0:
            raise ValueError(f"activations are bytes, at least 0; got {self.activations}.")

    def forward(self, problem: Problem, y0: Tensor) -> tuple[Tensor, Recorder]:
        if not problem.solver.stepper.transposable:
            raise ValueError(
                f"gradient='discrete' transposes Runge-Kutta steps, which method {problem.solver.method!r} "
                "does not take; use gradient='direct', 'gq' or 'adjoint'."
            )
        keep = self.keep
        if isinstance(problem.solver.stepper, CompiledRungeKutta):
            keep = "first" if self.max_states is None else "states"
        tape, deferred = None, DeferredLinear(problem.params)
        if keep == "stages" and self.max_states is None and problem.solver.points is None:
            tape = self._tape(problem, deferred)
        recorder = Recorder(keep, self.max_states, deferred, tape)
        problem.f.tape, problem.on_done = tape, remember
        try:
            ys = problem.run(y0, accepted=recorder)
        finally:
            problem.f.tape = None
        return ys, recorder

    def _tape(self, problem: Problem, deferred: DeferredLinear) -> Tape | None:
        """Keeps activations, unless the backward pass will be parallel in time and has no use for them."""
        if self.activations == 0 or self.mode == "parallel" or keeping_is_pointless():
            return None

        def allow(tape: Tape) -> None:
            sizes = sizes_of(problem)
            mode = self.pick_mode(sizes) if self.mode == "auto" else self.mode
            keeps = mode != "parallel" and known(problem).countable
            tape.left = self.activations // max(1, sizes.activation_bytes) if keeps else 0
            tape.within = deferred if mode == "stacked" else NOTHING

        def measured(tape: Tape, activation_bytes: int | None) -> None:
            note_evaluation(problem, activation_bytes, deferred)
            allow(tape)

        tape = Tape(measured, problem.params, deferred)
        if known(problem).activation_bytes is not None:
            allow(tape)
        return tape

    def backward(self, problem: Problem, memory: Recorder, grad_ys: Tensor) -> Gradients:
        if problem.solver.points is not None:
            return clock_sweep(problem, memory, grad_ys)
        memory.lead_to(problem.params)
        products, observations = Products(problem), Observations(problem, grad_ys)
        transposer = StepTransposer(problem, observations, grad_ys)
        if self._compiled(problem, memory):
            mode = "compiled"
            a = compiled_sweep(transposer, products, memory)
        else:
            mode = self._usable_mode(problem, memory)
            steps = backwards(memory, partial(replay, problem))
            if mode == "parallel":
                a = parallel_sweep(transposer, products, steps, asked=self.mode == "parallel")
            else:
                a = stage_sweep(transposer, products, steps, memory.deferred if mode == "stacked" else None)
        problem.stats.reason = problem.stats.reason or f"discrete, {mode}"
        return Gradients(observations.initial(a), products.sums)

    def _compiled(self, problem: Problem, memory: Recorder) -> bool:
        """Whether every step can be taken again by the compiled graph, which knows no sides of discontinuities."""
        stepper = problem.solver.stepper
        if memory.keep != "first" or not isinstance(stepper, CompiledRungeKutta):
            return False
        return all(r.stages == stepper.stages and r.nudge == (0, 0) for r in memory.records)

    def _usable_mode(self, problem: Problem, memory: Recorder) -> str:
        """The mode asked for or chosen; parallel only for samples that do not influence each other."""
        sizes = sizes_of(problem, problem.stats.forward_evaluations)
        if memory.has_graphs:
            sizes = replace(sizes, independent=False)
        mode = self.pick_mode(sizes) if self.mode == "auto" else self.mode
        if mode == "parallel" and not may_be_parallel(problem, memory, asked=self.mode == "parallel"):
            return self.pick_mode(replace(sizes, independent=False))
        return mode

    def pick_mode(self, sizes: Sizes) -> str:
        """The mode with the least predicted cost."""
        costs = predict(sizes, self.activations if self.keep == "stages" and self.max_states is None else 0)
        del costs["direct"]
        return cheapest(costs, math.inf)
