"""The sweep of the discrete adjoint from the last step to the first."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.autograd.recorded import NOTHING
from quadjoint.gradient.base import Gradients, Task
from quadjoint.gradient.cotangents import Cotangents
from quadjoint.gradient.discrete.checkpoints import StepRecord, StepRecorder
from quadjoint.gradient.discrete.deferred import DeferredLinear
from quadjoint.gradient.discrete.transpose import StepTransposer
from quadjoint.gradient.products import Products
from quadjoint.gradient.proof import Proof
from quadjoint.solver.methods.runge_kutta_step import RungeKuttaStep
from quadjoint.solver.methods.sums import combine
from quadjoint.solver.observe import Observer
from quadjoint.solver.protocols import Step, Stepper, Time


def sweep(
    transposer: StepTransposer, products: Products, memory: StepRecorder, deferred: DeferredLinear | None
) -> Tensor:
    """Transpose stage by stage; returns dL/dy at the start, without the observations there.

    Parameter products are taken with the state's, or, those of linear layers, ``deferred`` and many at a time.
    """
    task, shape, proof = transposer.task, transposer.task.f.shape, Proof(transposer.task)
    if deferred is not None:
        deferred.noted.clear()  # of a sweep that an exception has ended
    a, carried, behind = transposer.zero(), None, memory.end
    for record, _ in memory.backwards(partial(replay, task), proof):
        if transposer.needs_extension(record):
            record = replace(record, stages=transposer.total)
            record.inputs = replay(task, record, record.begin()).inputs
        adjoints, weights, live = transposer.open(record, a, carried)
        inputs, ks = record.stage_inputs(), {}
        from_next, carried = carried, None
        for i in range(record.stages - 1, -1, -1):
            lam = transposer.stage_adjoint(record, i, adjoints, from_next) if live[i] else None
            if i == 0 and record.shared:
                carried = adjoints[1] if lam is None else lam.reshape(-1)
                break
            if lam is None:
                continue
            recording = record.take(i)
            if recording is None:
                recording = products.record(transposer.stage_time(record, i), inputs[i], within=deferred or NOTHING)
                ks[i] = recording.out.detach()
            elif recording.y.is_leaf:
                products.watch(recording.out, recording.y)
            mu = (
                products.transpose(*recording, lam)
                if deferred is None
                else deferred.transpose(products, recording, lam)
            )
            adjoints[: 1 + i].addr_(weights[i, : 1 + i], mu.reshape(-1))
            for j, _ in transposer.method.rows[i]:
                live[j] = True
        if memory.stages and behind is not None:
            _compare(proof, transposer, record, ks, behind)
        a, behind = adjoints[0], inputs[0]
    if deferred is not None:
        deferred.flush(products)
    proof.conclude()
    return a.view(shape)


def _compare(proof: Proof, transposer: StepTransposer, record: StepRecord, ks: dict[int, Tensor], end: Tensor) -> None:
    """A step whose stages were evaluated again must end where it ended in the forward pass.

    Its first stage may be the last of the step before; it is then known from the input of the second.
    """
    method, inputs = transposer.method, record.stage_inputs()
    h: Time = record.t1 - record.t0 if record.lengths is None else record.lengths.to(inputs[0].dtype.to_real())
    if 0 not in ks and method.stages > 1 and method.rows[1]:
        moved = h if isinstance(h, float) else torch.where(h == 0.0, 1.0, h)  # samples at rest have not
        ks[0] = (inputs[1] - inputs[0]) / (moved * method.rows[1][0][1])
    if all(j in ks for j, _ in method.weights):
        found = combine(inputs[0], ks, method.weights, h)
        proof.compare(found, end, end - inputs[0])


def step_sweep(transposer: StepTransposer, products: Products, memory: StepRecorder) -> Tensor:
    """As ``sweep``, for steps that are graphs as a whole: each is taken again, and differentiated at once."""
    task, shape, proof = transposer.task, transposer.task.f.shape, Proof(transposer.task)
    a, behind = transposer.zero(), memory.end
    for record in reversed(memory.records):
        if transposer.needs_extension(record):
            record = replace(record, stages=transposer.total)
        adjoints, _, _ = transposer.open(record, a, None)
        y = record.begin().detach().requires_grad_()
        with torch.enable_grad():
            step = replay(task, record, y, transposer.method)
            stages = step.stacked()
        products.watch(stages, y)
        mu = products.transpose(stages, y, adjoints[1:].view(stages.shape))
        if behind is not None:
            proof.compare(step.y1, behind, step.y1 - y)
        a, behind = adjoints[0] + mu.reshape(-1), record.begin()
    proof.conclude()
    return a.view(shape)


def replay(task: Task, record: StepRecord, y: Tensor, stepper: Stepper | None = None) -> RungeKuttaStep:
    """Take a step of the forward pass again, with the stages that it had."""
    before = task.f.evaluations
    stepper = stepper or task.spec.solver.eager
    step = stepper.step(task.f, record.t0, record.t1, y, nudge=record.nudge, clock=record.clock)
    assert isinstance(step, RungeKuttaStep)
    if record.stages > len(step.ks):
        step.complete()
    task.stats.backward_evaluations += task.f.evaluations - before
    return step


def clock_sweep(task: Task, memory: StepRecorder, cotangents: Cotangents) -> Gradients:
    """Fixed grids whose points are learnable: each step is replayed under autograd, its ends among the inputs."""
    products, stepper, proof = Products(task), task.spec.solver.eager, Proof(task)
    observer = task.spec.make_observer()
    observed = observer.points
    assert isinstance(observer, Observer)
    assert task.spec.solver.points is not None and observed is not None
    points, observed = task.spec.solver.points.detach(), observed.detach()
    grad_points, grad_observed = torch.zeros_like(points), torch.zeros_like(observed)
    cotangents, asked = cotangents.observations(len(observed))
    a = torch.zeros_like(cotangents.grads[0])
    asked_at = observer.sign * np.array([] if asked is None else asked.times)
    in_step = np.searchsorted(cotangents.ends[1:-1], asked_at)
    for record, _ in memory.backwards(partial(replay, task), proof):
        n, (first, last) = record.index, cotangents.range_in_step(record.index)
        y0, ends = record.begin().detach().requires_grad_(), points[n : n + 2].clone().requires_grad_()
        times = observed[first:last].clone().requires_grad_()
        task.stats.backward_evaluations += record.stages
        with torch.enable_grad(), products.aliases if products.aliases else NOTHING:
            step = stepper.step(task.f, record.t0, record.t1, y0, nudge=record.nudge, clock=(ends[0], ends[1]))
            outs, grads = _observe(step, times, cotangents, first, last, a)
            if asked is not None and (here := np.flatnonzero(in_step == n)).size:
                at = torch.as_tensor(np.array(asked.times)[here], dtype=torch.float64)  # which stay where they are
                outs.append(step.evaluate_at(at.to(ends)))
                grads.append(asked.grads[torch.as_tensor(here, device=a.device)])
        products.watch(step.y1, y0, ends, times)
        inputs = (y0, ends, times, *products.targets)
        found: Any = torch.autograd.grad(outs, inputs, grads, retain_graph=True, allow_unused=True)
        in_y, in_ends, in_times, *in_params = found
        a = torch.zeros_like(y0) if in_y is None else in_y
        if in_ends is not None:
            grad_points[n : n + 2] += in_ends
        if in_times is not None:
            grad_observed[first:last] += in_times
        products.add(in_params)
    proof.conclude()
    return Gradients(cotangents.at_start(a), products.finish(), grad_points, grad_observed)


def _observe(
    step: Step, times: Tensor, cotangents: Cotangents, first: int, last: int, a: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """The end and the observations of a step, with their adjoints."""
    if last - first == 1 and cotangents.times[first] == step.t1:
        return [step.y1], [a + cotangents.grads[first]]
    if last == first:
        return [step.y1], [a]
    return [step.y1, step.evaluate_at(times)], [a, cotangents.grads[first:last]]
