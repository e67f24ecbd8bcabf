"""The transpose of the solve with no network evaluation in sequence.

All stages of a chunk of steps are evaluated in one stacked call. Where samples do not influence each other, d products
on its graph give the d x d Jacobians of every stage and sample; the recursion over stages then multiplies small
matrices, and one more product on the same graph gives the parameter gradient.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from quadjoint.compiled import once_only
from quadjoint.dynamics import can_stack, owner
from quadjoint.errors import warn_once
from quadjoint.gradient.checkpoints import Recorder, StepRecord
from quadjoint.gradient.parameters import CHUNK_ROWS, Products
from quadjoint.gradient.transpose import StepTransposer
from quadjoint.problem import Problem

_independent: weakref.WeakKeyDictionary[Any, dict[Any, bool]] = weakref.WeakKeyDictionary()


MAX_FEATURES = 8


def small_samples(problem: Problem) -> bool:
    """Whether the state is a batch of small samples that are not known to influence each other."""
    f, shape = problem.f, problem.f.shape
    if not shape or f.packed or shape[-1] > MAX_FEATURES:
        return False
    return _known(problem).get(_key(problem), True)


def probe_pays(problem: Problem) -> bool:
    """Whether trying that costs nothing: it has been done, or was for a module, which is solved many times."""
    return isinstance(owner(problem.f.f), torch.nn.Module) or _key(problem) in _known(problem)


def _known(problem: Problem) -> dict[Any, bool]:
    try:
        return _independent.setdefault(owner(problem.f.f), {})
    except TypeError:
        return {}


def samples_are_independent(problem: Problem, memory: Recorder, asked: bool) -> bool:
    """Whether a random half of the batch leaves the other half's derivatives alone; tried once per function and shape.

    Says so in a warning if they do not and the user ``asked`` for the parallel mode. If not asked, f must also allow to
    be evaluated as a stack.
    """
    f, shape = problem.f, problem.f.shape
    if not shape or f.packed:
        return False
    if not memory.records:
        return True
    samples = shape[:-1].numel() if len(shape) > 1 else 1
    known, key = _known(problem), _key(problem)
    if key not in known:
        record = memory.records[0]
        y = memory.states[0] if record.inputs is None else record.inputs[0]
        known[key] = (asked or can_stack(f, record.t0, y)) and (samples == 1 or _probe(problem, record.t0, y, samples))
    if not known[key] and asked:
        warn_once(
            f"coupled {id(f.f)}",
            f"The samples of a batch influence each other in {type(f.f).__name__}; the parallel backward pass needs "
            "independent samples, so products are computed stage by stage instead.",
        )
    return known[key]


def _key(problem: Problem) -> Any:
    """Samples may be coupled in training and not in evaluation (batch normalisation)."""
    module = owner(problem.f.f)
    training = tuple(m.training for m in module.modules()) if isinstance(module, torch.nn.Module) else ()
    return problem.f.shape, training


def _probe(problem: Problem, t: float, y: Tensor, samples: int) -> bool:
    products = Products(problem)
    generator = torch.Generator().manual_seed(0)
    point = y + 1e-3 * torch.randn(y.shape, generator=generator, dtype=y.dtype.to_real()).to(y)
    for _ in range(2):
        out, y = products.record(t, point)
        if not out.requires_grad:
            return True
        chosen = torch.randperm(samples, generator=generator) < (samples + 1) // 2
        mask = chosen.to(y.device).reshape(*y.shape[:-1], 1)
        v = torch.randn(y.shape, generator=generator, dtype=y.dtype.to_real()).to(y) * mask
        (g,) = torch.autograd.grad(out, y, v, retain_graph=True, allow_unused=True)
        if g is not None and bool((g * ~mask).abs().max() > 1e-6 * g.abs().max()):
            return False
    return True


def parallel_sweep(transposer: StepTransposer, products: Products, steps: Iterator[StepRecord]) -> Tensor:
    """Transpose the steps in chunks; returns dL/dy at the start, without the initial observation."""
    shape = transposer.problem.f.shape
    rows = shape[:-1].numel() if len(shape) > 1 else 1
    limit = max(1, 4 * CHUNK_ROWS // rows)
    a, carried = transposer.zero(), None
    chunk: list[StepRecord] = []
    stages = 0
    for record in steps:
        chunk.append(record)
        stages += record.stages
        if stages >= limit:
            a, carried = _chunk(transposer, products, chunk, a, carried)
            chunk, stages = [], 0
    if chunk:
        a, carried = _chunk(transposer, products, chunk, a, carried)
    return a.view(shape)


def _chunk(transposer: StepTransposer, products: Products, chunk: list[StepRecord], a: Tensor,
           carried: Tensor | None) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Transpose a chunk of steps, last first."""
    times: list[float] = []
    points: list[Tensor] = []
    for record in chunk:
        own = range(1 if record.shared else 0, record.stages)
        times += [transposer.stage_time(record, i) for i in own]
        points += record.filled()[own.start :]
    ys = torch.stack(points).requires_grad_()
    evaluate = _reusable(products.record_stack(times, ys), lambda: products.record_stack(times, ys))
    d = ys.shape[-1]
    jacobians = _jacobians(products, evaluate, ys).reshape(len(ys), -1, d, d).unbind(0)
    lambdas = torch.empty(len(ys), ys[0].numel(), dtype=ys.dtype, device=ys.device)
    start = 0
    for record in chunk:
        adjoints, _, _ = transposer.open(record, a, carried)
        rows = transposer.scaled(transposer.rows, record)
        first = 1 if record.shared else 0
        for i in range(record.stages - 1, first - 1, -1):
            mu = torch.matmul(adjoints[1 + i].view(-1, 1, d), jacobians[start + i - first])
            adjoints[: 1 + i].addr_(rows[i, : 1 + i], mu.view(-1))
        count = record.stages - first
        lambdas[start : start + count] = adjoints[1 + first :]
        start += count
        carried = adjoints[1] if record.shared else None
        a = adjoints[0]
    params, out = transposer.problem.params, evaluate()
    if params and out.requires_grad:
        products.stats.vjp_params += 1
        products.add(torch.autograd.grad(out, params, lambdas.view(out.shape), retain_graph=True, allow_unused=True))
    return a, carried


def _reusable(out: Tensor, again: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A graph for every product: the same, unless parts of it were compiled such that they run backwards only once."""
    return again if once_only(out) else lambda: out


def _jacobians(products: Products, evaluate: Callable[[], Tensor], ys: Tensor) -> Tensor:
    """d out[..., j] / d y[..., i] of every point and sample, shape (n, ..., d, d)."""
    d = ys.shape[-1]
    jacobian = torch.zeros(*ys.shape, d, dtype=ys.dtype, device=ys.device)
    for j in range(d):
        out = evaluate()
        if not out.requires_grad:
            break
        unit = torch.zeros_like(out)
        unit[..., j] = 1.0
        products.stats.vjp_state += len(ys)
        (row,) = torch.autograd.grad(out, ys, unit, retain_graph=True, allow_unused=True)
        if row is not None:
            jacobian[..., j, :] = row
    return jacobian
