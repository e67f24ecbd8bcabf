"""The exact transpose of the forward Runge-Kutta solve.

A step computes stage inputs Y_i = y0 + h sum_j a_ij k_j, stages k_i = f(t_i, Y_i), its end y1 = y0 + h sum b_i k_i and
observations y0 + h sum b_i(theta) k_i. Given dL/dy1 and the gradients of the observations inside, the transpose runs
through the stages from last to first: with lambda_i = dL/dk_i and mu_i = lambda_i^T df/dy(t_i, Y_i),

    lambda_j += h a_ij mu_i,   dL/dy0 += mu_i,   dL/dtheta += lambda_i^T df/dtheta(t_i, Y_i).

No step is rejected, no observation breaks the sweep, no second tolerance is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quadjoint.compiled import CompiledRungeKutta
from quadjoint.errors import nearest
from quadjoint.gradient.base import Gradient, Gradients
from quadjoint.gradient.checkpoints import Recorder, StepRecord, backwards
from quadjoint.gradient.cost import Sizes, cheapest, predict
from quadjoint.gradient.parallel import ParallelSweep, samples_are_independent, small_samples
from quadjoint.gradient.parameters import CHUNK_ROWS, Products
from quadjoint.integrate import SampleObserver
from quadjoint.problem import Problem
from quadjoint.steppers import RungeKuttaStep

MODES = ("auto", "joint", "stacked", "parallel")


@dataclass(frozen=True)
class DiscreteAdjoint(Gradient):
    """Exact gradients of the discretised solve from stored stages or states, without stored activations.

    Args:
        keep: "stages" stores every stage input; "states" one state a step, and recomputes the stages.
        max_states: at most so many stored states; the rest is recomputed from checkpoints.
        mode: "joint" one product in state and parameters per stage, "stacked" parameter products of many stages at
            once, "parallel" all stages at once with per-sample Jacobians; "auto" chooses by size.
    """

    keep: str = "stages"
    max_states: int | None = None
    mode: str = "auto"
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

    def forward(self, problem: Problem, y0: Tensor) -> tuple[Tensor, Recorder]:
        if not problem.solver.stepper.transposable:
            raise ValueError(
                f"gradient='discrete' transposes Runge-Kutta steps, which method {problem.solver.method!r} does not take; "
                "use gradient='direct', 'gq' or 'adjoint'."
            )
        keep = self.keep
        if isinstance(problem.solver.stepper, CompiledRungeKutta):
            keep = "first" if self.max_states is None else "states"
        recorder = Recorder(keep, self.max_states)
        return problem.run(y0, accepted=recorder), recorder

    def backward(self, problem: Problem, memory: Recorder, grad_ys: Tensor) -> Gradients:
        if problem.solver.points is not None:
            return _backward_with_clock(problem, memory, grad_ys)
        products = Products(problem)
        observations = Observations(problem, grad_ys)
        if memory.keep == "first" and all(r.stages == problem.solver.stepper.stages for r in memory.records):
            problem.stats.reason = problem.stats.reason or "discrete, compiled"
            a = _compiled_sweep(problem, products, observations, memory, grad_ys)
            return Gradients(observations.initial(a), products.sums)
        mode = self.pick_mode(problem) if self.mode == "auto" else self.mode
        if mode == "parallel" and not samples_are_independent(problem, memory, asked=self.mode == "parallel"):
            mode = self.pick_mode(problem)
        problem.stats.reason = problem.stats.reason or f"discrete, {mode}"

        def replay(record: StepRecord, y: Tensor) -> RungeKuttaStep:
            return _replay(problem, record, y)

        steps = backwards(memory, replay)
        if mode == "parallel":
            a = ParallelSweep(problem, products, observations).run(steps, grad_ys)
        else:
            a = _sweep(problem, products, observations, steps, grad_ys, stacked=mode == "stacked")
        return Gradients(observations.initial(a), products.sums)

    def pick_mode(self, problem: Problem) -> str:
        """The mode with the least predicted cost."""
        shape, params = problem.f.shape, problem.params
        item = problem.f.dtype.itemsize
        sizes = Sizes(
            rows=max(1, shape[:-1].numel()) if len(shape) > 1 else 1,
            features=shape[-1] if shape else 1,
            state_bytes=shape.numel() * item,
            parameters=sum(p.numel() for p in params),
            parameter_bytes=sum(p.numel() * p.element_size() for p in params),
            activation_bytes=0,
            evaluations=problem.stats.forward_evaluations,
            independent=small_samples(problem),
        )
        costs = predict(sizes)
        del costs["direct"]
        return cheapest(costs, math.inf)


class Observations:
    """Hands the gradients of the observations to the steps in which they lie."""

    def __init__(self, problem: Problem, grad_ys: Tensor) -> None:
        self.tableau = problem.solver.stepper.tableau
        self.plan = problem.plan
        self.observer = problem.make_observer()
        self.per_sample = isinstance(self.observer, SampleObserver)
        if isinstance(self.observer, SampleObserver):
            flat = grad_ys.reshape(-1, *grad_ys.shape[2:])
            self.grads = flat[torch.as_tensor(self.observer.order, device=grad_ys.device)]
            self.times = self.observer.sorted
        else:
            self.grads, self.times = grad_ys, problem.times

    def initial(self, a: Tensor) -> Tensor:
        """dL/dy0 from the adjoint at the start and the observations made there."""
        if not isinstance(self.observer, SampleObserver):
            return a + self.grads[0]
        first = self.plan[0][0] if self.plan else len(self.times)
        rows = self.observer.index(0, first, a.device)
        return a.clone().index_add_(0, rows, self.grads[:first])

    def at_end(self, record: StepRecord) -> Tensor | None:
        """The gradient of an observation exactly at the end of the step."""
        first, last = self.plan[record.index]
        if self.per_sample or first == last or self.times[last - 1] != record.t1:
            return None
        return self.grads[last - 1]

    def inside(self, record: StepRecord, lam: Tensor) -> Tensor | None:
        """Spread the gradients of observations inside the step over its stages; returns their part in dL/dy0.

        ``lam`` is dL/dk, shape (stages, *state), changed in place.
        """
        first, last = self.plan[record.index]
        if not self.per_sample and last > first and self.times[last - 1] == record.t1:
            last -= 1
        if first == last:
            return None
        h = record.t1 - record.t0
        theta = [(t - record.t0) / h for t in self.times[first:last]]
        weights = torch.as_tensor(self.tableau.dense_weights(theta) * h, dtype=lam.dtype, device=lam.device)
        g = self.grads[first:last]
        if isinstance(self.observer, SampleObserver):
            rows = self.observer.index(first, last, lam.device)
            spread = weights.T.reshape(len(lam), -1, *(1,) * (g.ndim - 1)) * g
            lam.index_add_(1, rows, spread)
            return torch.zeros_like(lam[0]).index_add_(0, rows, g)
        lam.view(len(lam), -1).addmm_(weights.T, g.reshape(len(g), -1))
        return g.sum(0)


def _sweep(problem: Problem, products: Products, observations: Observations, steps: Any, grad_ys: Tensor,
           stacked: bool) -> Tensor:  # fmt: skip
    """Transpose the steps one after another; returns dL/dy at the start, without the initial observation."""
    method = problem.solver.stepper
    queue = _Queue(products, grad_ys) if stacked else None
    a = torch.zeros(problem.f.shape, dtype=grad_ys.dtype, device=grad_ys.device)
    carried: Tensor | None = None  # dL/dk of the first stage of the step after, where it is a stage of this one
    for record in steps:
        lam, a = gather(method, observations, record, a, carried)
        flat = lam.view(len(lam), -1)
        live = _live(method, record, observations, carried is not None)
        h = record.t1 - record.t0
        carried = None
        for i in range(record.stages - 1, -1, -1):
            if i == 0 and record.shared:
                carried = lam[0]
                break
            if not live[i]:
                continue
            t = stage_time(method, record, i)
            nudge = record.nudge[0] if method.nodes[i] == 0.0 else record.nudge[1] if method.nodes[i] == 1.0 else 0
            if queue is None:
                mu = products.joint(t, record.inputs[i], lam[i], nudge)
            else:
                mu = products.state(t, record.inputs[i], lam[i], nudge)
                queue.put(t, record.inputs[i], lam[i])
            a = a + mu
            for j, w in method.rows[i]:
                flat[j].add_(mu.reshape(-1), alpha=w * h)
                live[j] = True
    if queue is not None:
        queue.flush()
    return a


def gather(
    method: Any, observations: Observations, record: StepRecord, a: Tensor, carried: Tensor | None
) -> tuple[Tensor, Tensor]:
    """dL/dk of all stages and dL/dy0 of a step, before its own stages are transposed."""
    end = observations.at_end(record)
    a = a if end is None else a + end
    lam = torch.zeros(record.stages, *a.shape, dtype=a.dtype, device=a.device)
    h = record.t1 - record.t0
    for j, w in method.weights:
        torch.mul(a, w * h, out=lam[j])
    extra = spread(method, observations, record, lam, carried)
    return lam, a if extra is None else a + extra


def spread(
    method: Any, observations: Observations, record: StepRecord, lam: Tensor, carried: Tensor | None
) -> Tensor | None:
    """Add to dL/dk what comes from the next step and from observations inside; returns the latter's part in dL/dy0."""
    if carried is not None:
        lam[method.stages if not method.fsal else method.stages - 1].add_(carried)
    return observations.inside(record, lam)


def _compiled_sweep(
    problem: Problem, products: Products, observations: Observations, memory: Recorder, grad_ys: Tensor
) -> Tensor:
    """Transpose the steps by taking each again in its compiled graph, whose backward pass is compiled as well."""
    stepper, f, params = problem.solver.stepper, problem.f, problem.params
    a = torch.zeros(f.shape, dtype=grad_ys.dtype, device=grad_ys.device)
    carried: Tensor | None = None
    for record in reversed(memory.records):
        end = observations.at_end(record)
        a = a if end is None else a + end
        lam = torch.zeros(record.stages, *a.shape, dtype=a.dtype, device=a.device)
        extra = spread(stepper, observations, record, lam, carried)
        assert record.first is not None
        with torch.enable_grad():
            y = memory.states[record.index].detach().requires_grad_()
            k = record.first.detach().requires_grad_()
            y1, stages, _ = stepper.call(f, record.t0, record.t1, y, k)
        found, first, *gradients = torch.autograd.grad((y1, stages), (y, k, *params), (a, lam), allow_unused=True)
        problem.stats.backward_evaluations += record.stages - 1
        problem.stats.vjp_state += record.stages - 1
        problem.stats.vjp_params += record.stages - 1
        products.add(gradients)
        a = found if extra is None else found + extra
        carried = first if record.shared else None
        if not record.shared:
            a = a + products.joint(record.t0, y, first)
    return a


def _live(method: Any, record: StepRecord, observations: Observations, carried: bool) -> list[bool]:
    """Which stages have any influence so far; those without are skipped."""
    live = [False] * record.stages
    for j, _ in method.weights:
        live[j] = True
    if carried:
        live[method.stages if not method.fsal else method.stages - 1] = True
    first, last = observations.plan[record.index]
    if last > first:
        live = [True] * record.stages
    return live


def stage_time(method: Any, record: StepRecord, i: int) -> float:
    c = method.nodes[i]
    return record.t1 if c == 1.0 else record.t0 + c * (record.t1 - record.t0)


class _Queue:
    """Collects (t, Y, lambda) and adds their parameter products to the sums, many at a time."""

    def __init__(self, products: Products, like: Tensor) -> None:
        self.products = products
        rows = max(1, math.prod(like.shape[1:-1]))
        self.size = max(1, CHUNK_ROWS // rows)
        self.items: list[tuple[float, Tensor, Tensor]] = []

    def put(self, t: float, y: Tensor, a: Tensor) -> None:
        self.items.append((t, y, a))
        if len(self.items) >= self.size:
            self.flush()

    def flush(self) -> None:
        if self.items:
            times, ys, a = zip(*self.items, strict=True)
            self.products.stacked(times, torch.stack(ys), torch.stack(a))
            self.items = []


def _replay(problem: Problem, record: StepRecord, y: Tensor) -> RungeKuttaStep:
    """Take a step of the forward pass again, with the stages that it had."""
    before = problem.f.evaluations
    stepper = problem.solver.stepper
    eager = stepper.eager if isinstance(stepper, CompiledRungeKutta) else stepper
    step: RungeKuttaStep = eager.step(problem.f, record.t0, record.t1, y, None, record.nudge)
    if record.stages > len(step.ks):
        step.complete()
    problem.stats.backward_evaluations += problem.f.evaluations - before
    return step


def _backward_with_clock(problem: Problem, memory: Recorder, grad_ys: Tensor) -> Gradients:
    """Fixed grids whose points are learnable: each step is replayed under autograd, its ends among the inputs."""
    products, stepper = Products(problem), problem.solver.stepper
    observed = problem.make_observer().points
    assert problem.solver.points is not None and observed is not None
    points, observed = problem.solver.points.detach(), observed.detach()
    grad_points, grad_observed = torch.zeros_like(points), torch.zeros_like(observed)
    a = torch.zeros_like(grad_ys[0])
    for record in backwards(memory, lambda r, y: _replay(problem, r, y)):
        n, (first, last) = record.index, problem.plan[record.index]
        y0, ends = record.inputs[0].detach().requires_grad_(), points[n : n + 2].clone().requires_grad_()
        times = observed[first:last].clone().requires_grad_()
        with torch.enable_grad():
            step = stepper.step(problem.f, record.t0, record.t1, y0, None, record.nudge, (ends[0], ends[1]))
            outs, grads = [step.y1], [a]
            if last - first == 1 and problem.times[first] == record.t1:
                grads = [a + grad_ys[first]]
            elif last > first:
                outs.append(step.evaluate_at(times))
                grads.append(grad_ys[first:last])
            found = torch.autograd.grad(outs, (y0, ends, times, *problem.params), grads, allow_unused=True)
        a, in_ends, in_times, *in_params = found
        a = torch.zeros_like(y0) if a is None else a
        if in_ends is not None:
            grad_points[n : n + 2] += in_ends
        if in_times is not None:
            grad_observed[first:last] += in_times
        products.add(in_params)
    return Gradients(a + grad_ys[0], products.sums, grad_points, grad_observed)
