"""Sizes of a solve, from which the costs of gradient methods are predicted: measured once, then remembered."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from quadjoint.autograd.leaves import upstream
from quadjoint.autograd.tape import record_and_count
from quadjoint.gradient.choose.cost import Sizes
from quadjoint.gradient.discrete.deferred import MOSTLY, DeferredLinear
from quadjoint.gradient.discrete.parallel import small_samples, trial_pays
from quadjoint.solver.dynamics import kept_for
from quadjoint.solver.problem import Problem, find_parameters

KINDS = 64  # kinds of solves of one function that are remembered
FIRST_GUESS = 30  # evaluations, where a function has not been solved before


@dataclass
class Known:
    """What has been measured of a function at one shape."""

    activation_bytes: int | None = None
    countable: bool = True  # the activations
    partial: bool = True  # single gradients can be had, as not of reentrant checkpoints
    deferrable: bool = False  # the parameters are mostly those of linear layers
    evaluations: dict[Any, int] = field(default_factory=dict)  # per kind of solve


_known: weakref.WeakKeyDictionary[Any, dict[Any, Known]] = weakref.WeakKeyDictionary()


def known(problem: Problem) -> Known:
    """What is remembered of the function of a solve; functions that cannot be referenced weakly are forgotten."""
    f = problem.f
    if f.known is None:
        f.known = kept_for(_known, f.f).setdefault((f.shape, f.dtype, f.device), Known())
    found: Known = f.known
    return found


def remember(problem: Problem) -> None:
    """Keep the evaluations of a solve that has been made for the next one of its kind."""
    evaluations, kind = known(problem).evaluations, problem.kind
    evaluations.pop(kind, None)
    evaluations[kind] = problem.stats.forward_evaluations
    if len(evaluations) > KINDS:
        evaluations.pop(next(iter(evaluations)))


def note_evaluation(problem: Problem, activation_bytes: int | None, deferred: DeferredLinear) -> None:
    """Keep what was measured in a recorded evaluation; bytes that could not be counted are taken for few."""
    found = known(problem)
    found.activation_bytes, found.countable = activation_bytes or 0, activation_bytes is not None
    found.deferrable = deferred.share > MOSTLY


def sizes_of(problem: Problem, evaluations: int | None = None) -> Sizes:
    """Sizes of a solve, with the evaluations of the last one of its kind and what was measured of one evaluation."""
    shape, params, f, found = problem.f.shape, problem.params, problem.f, known(problem)
    if evaluations is None:
        evaluations = found.evaluations.get(problem.kind, FIRST_GUESS)
    return Sizes(
        rows=max(1, shape[:-1].numel()) if len(shape) > 1 else 1,
        features=shape[-1] if shape else 1,
        state_bytes=shape.numel() * f.dtype.itemsize,
        parameters=sum(p.numel() for p in params),
        parameter_bytes=sum(p.numel() * p.element_size() for p in params),
        activation_bytes=found.activation_bytes or 0,
        deferrable=found.deferrable,
        evaluations=evaluations,
        independent=small_samples(problem),
        tried=trial_pays(problem),
        transposable=problem.solver.stepper.transposable and found.partial,
        compiled=problem.compiled,
    )


def measure(problem: Problem, f: Callable[..., Any], y0: Tensor, params: Any) -> Sizes:
    """Sizes of a solve, its parameters found; the activations of one evaluation are measured if they are not known."""
    start = problem.make_observer().interval[0]
    problem.params = find_parameters(f, problem.f, start, y0, params)
    if known(problem).activation_bytes is None:
        dynamics, deferred = problem.f, DeferredLinear(problem.params)
        graph, count = record_and_count(dynamics.checked, dynamics.time(start), y0, problem.params, deferred)
        note_evaluation(problem, count, deferred)
        known(problem).partial = not any("CheckpointFunction" in node.name() for node in upstream(graph.out))
    problem.on_done = remember
    return sizes_of(problem)
