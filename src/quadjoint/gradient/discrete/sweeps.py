"""Sweeps of the discrete adjoint that go from step to step: stage by stage, compiled, or with learnable grids."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from quadjoint.autograd.tape import NOTHING
from quadjoint.gradient.base import Gradients
from quadjoint.gradient.discrete.checkpoints import Recorder, StepRecord, backwards
from quadjoint.gradient.discrete.deferred import MOSTLY, DeferredLinear
from quadjoint.gradient.discrete.transpose import StepTransposer
from quadjoint.gradient.products import CHUNK_ROWS, Products
from quadjoint.solver.methods.runge_kutta import RungeKuttaStep
from quadjoint.solver.problem import Problem


def stage_sweep(transposer: StepTransposer, products: Products, steps: Iterable[StepRecord],
                deferred: DeferredLinear | None, a: Tensor | None = None,
                carried: Tensor | None = None) -> Tensor:  # fmt: skip
    """Transpose stage by stage; returns dL/dy at the start, without the initial observation.

    ``a`` and ``carried`` are the adjoints behind the last of the steps, where that is not the last of all. Parameter
    products are taken with the state's, or many at a time: those of linear layers ``deferred``. Where other layers
    have the most parameters, f is evaluated once more at a stack of points.
    """
    shape = transposer.problem.f.shape
    queue: _Queue | None = None
    if a is None:
        a = transposer.zero()
    if deferred is not None:
        deferred.noted.clear()  # of a sweep that an exception has ended
    for record in steps:
        adjoints, _, live = transposer.open(record, a, carried)
        rows = transposer.scaled(transposer.rows, record)
        inputs = record.filled()
        carried = None
        for i in range(record.stages - 1, -1, -1):
            if i == 0 and record.shared:
                carried = adjoints[1]
                break
            if not live[i]:
                continue
            t, lam = transposer.stage_time(record, i), adjoints[1 + i].view(shape)
            graph = record.take(i) or products.record(t, inputs[i], within=deferred or NOTHING)
            if deferred is not None and deferred.share <= MOSTLY:
                deferred, queue = None, _Queue(products, shape)
            if queue is not None:
                mu = products.transpose_state(*graph, lam)
                queue.put(t, inputs[i], lam)
            elif deferred is not None:
                mu = deferred.transpose(products, graph, lam)
            else:
                mu = products.transpose(*graph, lam)
            adjoints[: 1 + i].addr_(rows[i, : 1 + i], mu.reshape(-1))
            for j, _ in transposer.method.rows[i]:
                live[j] = True
        a = adjoints[0]
    if queue is not None:
        queue.flush()
    elif deferred is not None:
        deferred.flush(products)
    return a.view(shape)


class _Queue:
    """Collects (t, Y, lambda) and adds their parameter products to the sums, many at a time."""

    def __init__(self, products: Products, shape: torch.Size) -> None:
        self.products = products
        self.size = max(1, CHUNK_ROWS // max(1, math.prod(shape[:-1])))
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


def compiled_sweep(transposer: StepTransposer, products: Products, memory: Recorder) -> Tensor:
    """Transpose the steps by taking each again in its compiled graph, whose backward pass is compiled as well."""
    problem = transposer.problem
    stepper, f, params, stats = problem.solver.stepper, problem.f, problem.params, problem.stats
    a, carried = transposer.zero(), None
    for record in reversed(memory.records):
        adjoints, a, _ = transposer.open(record, a, carried, through_end=False)
        assert record.first is not None
        with torch.enable_grad():
            y = memory.states[record.index].detach().requires_grad_()
            k = record.first.detach().requires_grad_()
            y1, stages, _ = stepper.call(f, record.t0, record.t1, y, k)
        grads = (a.view(f.shape), adjoints[1:].view(stages.shape))
        # No graph is retained here: a compiled backward pass may reuse the buffers of the forward pass.
        found, first, *gradients = torch.autograd.grad((y1, stages), (y, k, *params), grads, allow_unused=True)
        stats.backward_evaluations += record.stages - 1
        stats.vjp_state += record.stages - 1
        stats.vjp_params += record.stages - 1
        products.add(gradients)
        a = adjoints[0] + found.reshape(-1)
        carried = first.reshape(-1) if record.shared else None
        if not record.shared:
            a = a + products.joint(record.t0, y, first).reshape(-1)
    return a.view(f.shape)


def replay(problem: Problem, record: StepRecord, y: Tensor) -> RungeKuttaStep:
    """Take a step of the forward pass again, with the stages that it had."""
    before = problem.f.evaluations
    step: RungeKuttaStep = problem.solver.eager.step(problem.f, record.t0, record.t1, y, None, record.nudge)
    if record.stages > len(step.ks):
        step.complete()
    problem.stats.backward_evaluations += problem.f.evaluations - before
    return step


def clock_sweep(problem: Problem, memory: Recorder, grad_ys: Tensor) -> Gradients:
    """Fixed grids whose points are learnable: each step is replayed under autograd, its ends among the inputs."""
    products, stepper = Products(problem), problem.solver.eager
    observed = problem.make_observer().points
    assert problem.solver.points is not None and observed is not None
    points, observed = problem.solver.points.detach(), observed.detach()
    grad_points, grad_observed = torch.zeros_like(points), torch.zeros_like(observed)
    a = torch.zeros_like(grad_ys[0])
    for record in backwards(memory, lambda r, y: replay(problem, r, y)):
        n, (first, last) = record.index, problem.plan[record.index]
        y0, ends = record.filled()[0].detach().requires_grad_(), points[n : n + 2].clone().requires_grad_()
        times = observed[first:last].clone().requires_grad_()
        with torch.enable_grad():
            step = stepper.step(problem.f, record.t0, record.t1, y0, None, record.nudge, (ends[0], ends[1]))
            outs, grads = [step.y1], [a]
            if last - first == 1 and problem.times[first] == record.t1:
                grads = [a + grad_ys[first]]
            elif last > first:
                outs.append(step.evaluate_at(times))
                grads.append(grad_ys[first:last])
            found = torch.autograd.grad(
                outs, (y0, ends, times, *problem.params), grads, retain_graph=True, allow_unused=True
            )
        in_y, in_ends, in_times, *in_params = found
        a = torch.zeros_like(y0) if in_y is None else in_y
        if in_ends is not None:
            grad_points[n : n + 2] += in_ends
        if in_times is not None:
            grad_observed[first:last] += in_times
        products.add(in_params)
    return Gradients(a + grad_ys[0], products.sums, grad_points, grad_observed)
