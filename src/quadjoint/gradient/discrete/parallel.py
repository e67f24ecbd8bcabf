"""The transpose of the solve with no network evaluation in sequence.

All stages of a chunk of steps are evaluated in one stacked call. Where samples do not influence each other, d products
on its graph give the d x d Jacobians of every stage and sample; the recursion over stages then multiplies small
matrices, and one more product on the same graph gives the parameter gradient.

That last product, of all stages with their lambdas, also gives every mu of the recursion without the assumption. Where
the two agree the gradient is exact; where they do not, samples do influence each other, and the chunk is transposed
again stage by stage.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quadjoint.errors import warn_once
from quadjoint.gradient.discrete.checkpoints import Recorder, StepRecord
from quadjoint.gradient.discrete.sweeps import stage_sweep
from quadjoint.gradient.discrete.transpose import StepTransposer
from quadjoint.gradient.products import CHUNK_ROWS, Products
from quadjoint.solver.dynamics import can_stack, kept_for, owner
from quadjoint.solver.methods.compiled import once_only
from quadjoint.solver.problem import Problem

MAX_FEATURES = 8

# Whether the parallel sweep was right for a function at a shape. A solve that it is wrong for is noticed in any case.
_right: weakref.WeakKeyDictionary[Any, dict[Any, bool]] = weakref.WeakKeyDictionary()


def small_samples(problem: Problem) -> bool:
    """Whether the state is a batch of small samples that are not known to influence each other."""
    f, shape = problem.f, problem.f.shape
    if not shape or f.packed or f.dtype.is_complex or shape[-1] > MAX_FEATURES:
        return False
    return _known(problem).get(_key(problem), True)


def trial_pays(problem: Problem) -> bool:
    """Whether a first try costs nothing: it has been made, or is for a module, which is solved many times."""
    return isinstance(owner(problem.f.f), torch.nn.Module) or _key(problem) in _known(problem)


def _known(problem: Problem) -> dict[Any, bool]:
    return kept_for(_right, problem.f.f)


def _key(problem: Problem) -> Any:
    """Samples may be coupled in training and not in evaluation (batch normalisation), or by one method of an object."""
    module = owner(problem.f.f)
    training = tuple(m.training for m in module.modules()) if isinstance(module, torch.nn.Module) else ()
    return problem.f.shape, training, getattr(problem.f.f, "__func__", None)


def may_be_parallel(problem: Problem, memory: Recorder, asked: bool) -> bool:
    """Whether to try. Where the user has not ``asked`` for it, f must allow to be evaluated as a stack."""
    f, shape = problem.f, problem.f.shape
    if not shape or f.packed or not shape.numel() or not memory.records:
        return False
    known = _known(problem).get(_key(problem))
    if known is None and not asked:
        record = memory.records[0]
        y = memory.states[0] if record.inputs is None else record.inputs[0]
        known = can_stack(f, record.t0, y)
    if known is False:
        _note(problem, False, asked)
    return known is not False


def _note(problem: Problem, right: bool, asked: bool) -> None:
    _known(problem)[_key(problem)] = right
    if asked and not right:
        name = type(problem.f.f).__name__
        warn_once(
            f"coupled {id(problem.f.f)}",
            f"The samples of a batch influence each other in {name}, or hooks are in the way; the parallel backward "
            "pass needs independent samples, so products are computed stage by stage instead.",
        )


def parallel_sweep(transposer: StepTransposer, products: Products, steps: Iterator[StepRecord], asked: bool) -> Tensor:
    """Transpose the steps in chunks; returns dL/dy at the start, without the initial observation."""
    problem = transposer.problem
    shape = problem.f.shape
    rows = shape[:-1].numel() if len(shape) > 1 else 1
    limit = max(1, 4 * CHUNK_ROWS // rows)
    a, carried = transposer.zero(), None
    for chunk in _chunks(steps, limit):
        done = _transposed(transposer, products, chunk, a, carried)
        if not done.right:
            if done.finite:
                _note(problem, False, asked)
            return stage_sweep(transposer, products, itertools.chain(chunk, steps), None, a, carried)
        products.add(done.gradients)
        a, carried = done.a, done.carried
    _note(problem, True, asked)
    return a.view(shape)


def _chunks(steps: Iterator[StepRecord], limit: int) -> Iterator[list[StepRecord]]:
    chunk: list[StepRecord] = []
    for record in steps:
        chunk.append(record)
        if sum(r.stages for r in chunk) >= limit:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


@dataclass
class _Transposed:
    """A chunk transposed under the assumption of independent samples, and whether it holds."""

    a: Tensor
    carried: Tensor | None
    gradients: Sequence[Tensor | None]
    right: bool = True
    finite: bool = True


def _transposed(transposer: StepTransposer, products: Products, chunk: list[StepRecord], a: Tensor,
                carried: Tensor | None) -> _Transposed:  # fmt: skip
    """Transpose a chunk of steps, last first."""
    problem = transposer.problem
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
    mus = torch.empty_like(lambdas)
    start = 0
    for record in chunk:
        adjoints, _, _ = transposer.open(record, a, carried)
        rows = transposer.scaled(transposer.rows, record)
        first = 1 if record.shared else 0
        for i in range(record.stages - 1, first - 1, -1):
            mu = mus[start + i - first]
            torch.matmul(adjoints[1 + i].view(-1, 1, d), jacobians[start + i - first], out=mu.view(-1, 1, d))
            adjoints[: 1 + i].addr_(rows[i, : 1 + i], mu)
        count = record.stages - first
        lambdas[start : start + count] = adjoints[1 + first :]
        start += count
        carried = adjoints[1] if record.shared else None
        a = adjoints[0]
    out = evaluate()
    if not out.requires_grad:
        return _Transposed(a, carried, [])
    lambdas = lambdas.view(out.shape)
    products.stats.vjp_params += bool(problem.params)
    found, *gradients = torch.autograd.grad(out, (ys, *problem.params), lambdas, retain_graph=True, allow_unused=True)
    true = torch.zeros_like(mus) if found is None else found.reshape(mus.shape)
    done = _Transposed(a, carried, gradients, _agree(mus, true))
    if done.right and _key(problem) not in _known(problem):
        # Under vmap f does not see that its input requires grad, and hooks on it are not called.
        done.right = _agree(
            products.transpose_state(*products.record(times[0], points[0]), lambdas[0]).reshape(-1), true[0]
        )
    done.finite = done.right or bool(torch.isfinite(true).all())
    return done


def _agree(found: Tensor, true: Tensor) -> bool:
    """Equal up to rounding: a thousand units in the last place of the largest, at least 1e-9 and at most 0.1 of it."""
    allowed = min(max(1e-9, 1e3 * torch.finfo(found.dtype).eps), 0.1)
    return bool((found - true).abs().max() <= allowed * true.abs().max())


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
