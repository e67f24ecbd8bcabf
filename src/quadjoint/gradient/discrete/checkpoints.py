"""Which states of the forward solve are kept, and how the others are found again in the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quadjoint.autograd.tape import Graph, Tape
from quadjoint.gradient.discrete.deferred import DeferredLinear
from quadjoint.solver.methods.runge_kutta import RungeKuttaStep


@dataclass
class StepRecord:
    """An accepted step: when, with how many stages, and as much of it as memory allows."""

    index: int
    t0: float
    t1: float
    stages: int  # evaluated in the forward pass, with those of the continuous extension
    shared: bool  # the first stage is the last of the step before
    nudge: tuple[int, int]
    inputs: list[Tensor] | None  # the stage inputs Y_i
    first: Tensor | None = None  # the first stage, kept for steps that a compiled graph takes again
    graphs: list[Graph | None] | None = None  # of the stages, as far as the forward pass has kept them

    def filled(self) -> list[Tensor]:
        """The stage inputs of a step that has them."""
        assert self.inputs is not None
        return self.inputs

    def take(self, i: int) -> Graph | None:
        """The graph of stage i, if it was kept; it is used once and then freed."""
        if self.graphs is None:
            return None
        graph, self.graphs[i] = self.graphs[i], None
        return graph


class Recorder:
    """Records the accepted steps of a forward solve.

    ``keep`` is "stages" (every stage input), "states" (the state at the start of every step), or "first" (that and the
    first stage, for compiled steps). With ``max_states`` only every n-th state is kept, n doubling whenever there are
    too many.
    """

    def __init__(self, keep: str, max_states: int | None, deferred: DeferredLinear, tape: Tape | None = None) -> None:
        self.keep, self.max_states, self.deferred, self.tape = keep, max_states, deferred, tape
        self.records: list[StepRecord] = []
        self.states: dict[int, Tensor] = {}
        self.stride = 1
        self.carries = False  # whether the last stage of the step before is the first of the next

    @property
    def has_graphs(self) -> bool:
        return any(g is not None for record in self.records for g in record.graphs or ())

    def lead_to(self, params: tuple[Tensor, ...]) -> None:
        """Drop graphs that lead to other tensors than ``params``: the module was handed others for the forward pass."""
        if any(a is not b for a, b in zip(self.deferred.params, params, strict=True)):
            self.deferred = DeferredLinear(params)
            for record in self.records:
                record.graphs = None

    def __call__(self, step: Any) -> None:
        if not isinstance(step, RungeKuttaStep):
            raise ValueError(
                "gradient='discrete' transposes Runge-Kutta steps; for this method use 'direct', 'gq' or 'adjoint'."
            )
        index = len(self.records)
        inputs = step.inputs if self.keep == "stages" and self.max_states is None else None
        # After a rejected step the first stage is reused as well; it is not a stage of the step before then.
        shared = step.first_shared and self.carries
        self.carries = step.carry is not None
        first = step.ks[0] if self.keep == "first" else None
        graphs = None if self.tape is None else self.tape.take(step.ks)
        record = StepRecord(index, step.t0, step.t1, len(step.ks), shared, step.nudge, inputs, first, graphs)
        self.records.append(record)
        if inputs is None and index % self.stride == 0:
            self.states[index] = step.y0
            if self.max_states is not None and len(self.states) > self.max_states:
                self.stride *= 2
                self.states = {i: y for i, y in self.states.items() if i % self.stride == 0}


def backwards(recorder: Recorder, replay: Callable[[StepRecord, Tensor], RungeKuttaStep]) -> Iterator[StepRecord]:
    """The steps from last to first, each with its stage inputs, recomputing what was not kept.

    Between two kept states the steps are reversed recursively: with c states to spare, a run of n steps is split as
    in Griewank's binomial schedule ("Achieving logarithmic growth ...", 1992), so that the extra work grows with the
    logarithm of n as soon as c does.
    """
    records, kept = recorder.records, dict(recorder.states)
    end = len(records)
    if recorder.keep == "stages" and recorder.max_states is None:
        yield from reversed(records)
        return
    for start in sorted(kept, reverse=True):
        spare = end - start if recorder.max_states is None else recorder.max_states - len(kept)
        yield from _reverse(records, start, end, kept.pop(start), spare, replay)
        end = start


def _reverse(records: list[StepRecord], start: int, end: int, y: Tensor, spare: int,
             replay: Callable[[StepRecord, Tensor], RungeKuttaStep]) -> Iterator[StepRecord]:  # fmt: skip
    while end - start > 1:
        middle = start + _split(end - start, max(spare, 0))
        here = y
        for record in records[start:middle]:
            here = replay(record, here).y1
        if spare > 0:
            yield from _reverse(records, middle, end, here, spare - 1, replay)
            end = middle
        else:  # no state to spare: walk to the last step each time
            yield _filled(records[end - 1], here, replay)
            end -= 1
    yield _filled(records[start], y, replay)


def _split(n: int, spare: int) -> int:
    """Length of the first part of a run of ``n`` steps; without spare states, all but the last step."""
    if spare == 0:
        return n - 1
    repeats = 1
    while math.comb(spare + 1 + repeats, repeats) < n:
        repeats += 1
    return min(n - 1, max(1, n - math.comb(spare + repeats, repeats)))


def _filled(record: StepRecord, y: Tensor, replay: Callable[[StepRecord, Tensor], RungeKuttaStep]) -> StepRecord:
    step = replay(record, y)
    return StepRecord(record.index, record.t0, record.t1, record.stages, record.shared, record.nudge, step.inputs)
