"""Which states of the forward solve are kept, and how the others are found again in the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from quadjoint.autograd.recorded import Recording
from quadjoint.gradient.discrete.tape import Tape
from quadjoint.gradient.proof import Proof
from quadjoint.solver.methods.runge_kutta_step import RungeKuttaStep
from quadjoint.solver.protocols import Clock, Step


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
    start: Tensor | None = None  # the state at t0, which need not be a stage input
    recordings: list[Recording | None] | None = None  # of the stages, as far as the forward pass has kept them
    clock: Clock | None = None  # the ends of the samples' own steps

    @property
    def lengths(self) -> Tensor | None:
        """The lengths of the samples' own steps, shaped to broadcast against the state, in the precision of times."""
        return None if self.clock is None else self.clock[1] - self.clock[0]

    def stage_inputs(self) -> list[Tensor]:
        """The stage inputs of a step that has them."""
        assert self.inputs is not None
        return self.inputs

    def begin(self) -> Tensor:
        """The state at the start of a step that has it."""
        assert self.start is not None
        return self.start

    def take(self, i: int) -> Recording | None:
        """The graph of stage i, if it was kept; it is used once and then freed."""
        if self.recordings is None or i >= len(self.recordings):
            return None
        recording, self.recordings[i] = self.recordings[i], None
        return recording


class StepRecorder:
    """Records the accepted steps of a forward solve.

    With ``stages`` every stage input is kept, else the state at the start of every step. ``max_states`` keeps only
    every n-th state, n doubling whenever there are too many. ``max_bytes`` does both as the memory is used up.
    """

    def __init__(
        self, dynamics: Tape, *, stages: bool, max_states: int | None = None, max_bytes: int | None = None
    ) -> None:
        self.dynamics, self.stages, self.max_states, self.max_bytes = dynamics, stages, max_states, max_bytes
        self.records: list[StepRecord] = []
        self.states: dict[int, Tensor] = {}
        self.end: Tensor | None = None
        self.stride = 1
        self.stored = 0  # stage inputs
        self.carries = False  # whether the last stage of the step before is the first of the next

    def __call__(self, step: Step) -> None:
        assert isinstance(step, RungeKuttaStep)
        index = len(self.records)
        # After a rejected step the first stage is reused as well; it is not a stage of the step before then.
        shared = step.first_shared and self.carries
        self.carries, self.end = step.carry is not None, step.y1
        recordings = self.dynamics.take(step.ks)
        inputs = step.inputs if self.stages else None
        kept = recordings if self.stages and any(g is not None for g in recordings) else None
        start = step.y0 if self.stages else None
        clock = None if step.lengths is None else step.clock
        self.records.append(
            StepRecord(index, step.t0, step.t1, len(step.ks), shared, step.nudge, inputs, start, kept, clock)
        )
        if self.stages:
            self.stored += len(step.inputs)
            if self.max_bytes is not None and self.stored * _bytes(step.y0) > self.max_bytes:
                self._keep_states()
        elif index % self.stride == 0:
            self.states[index] = step.y0
            self._thin(step.y0)

    def _keep_states(self) -> None:
        """Give up the stage inputs of all steps so far and to come."""
        self.stages, self.dynamics.left = False, 0
        self.states = {r.index: r.begin() for r in self.records}
        self.records = [replace(r, inputs=None, start=None, recordings=None) for r in self.records]
        self._thin(self.states[0])

    def _thin(self, y: Tensor) -> None:
        limits = [] if self.max_states is None else [self.max_states]
        if self.max_bytes is not None:
            limits.append(max(2, self.max_bytes // max(1, _bytes(y))))
        while limits and len(self.states) > min(limits):
            self.max_states = min(limits)
            self.stride *= 2
            self.states = {i: y for i, y in self.states.items() if i % self.stride == 0}

    def backwards(
        self, replay: Callable[[StepRecord, Tensor], RungeKuttaStep], proof: Proof
    ) -> Iterator[tuple[StepRecord, RungeKuttaStep | None]]:
        """The steps from last to first, each with its stage inputs; those that were not kept as they are replayed.

        Between two kept states the steps are reversed recursively: with c states to spare, a run of n steps is split
        as in Griewank's binomial schedule ("Achieving logarithmic growth ...", 1992), so that the extra work grows
        with the logarithm of n as soon as c does. A replayed step must lead to the state that is kept behind it.
        """
        if self.stages:
            yield from ((record, None) for record in reversed(self.records))
            return
        kept, end, behind = dict(self.states), len(self.records), self.end

        def fill(record: StepRecord, y: Tensor) -> tuple[StepRecord, RungeKuttaStep]:
            step = replay(record, y)
            if record.index == end - 1 and behind is not None:
                proof.compare(step.y1, behind, step.y1 - y, steps=end - start)
            return replace(record, inputs=step.inputs, start=y), step

        for start in sorted(kept, reverse=True):
            spare = end - start if self.max_states is None else self.max_states - len(kept)
            y = kept.pop(start)
            yield from _reverse(self.records, start, end, y, spare, fill, lambda r, y: replay(r, y).y1)
            end, behind = start, y


def _bytes(y: Tensor) -> int:
    return y.numel() * y.element_size()


def _reverse(
    records: list[StepRecord],
    start: int,
    end: int,
    y: Tensor,
    spare: int,
    fill: Callable[[StepRecord, Tensor], tuple[StepRecord, RungeKuttaStep]],
    advance: Callable[[StepRecord, Tensor], Tensor],
) -> Iterator[tuple[StepRecord, RungeKuttaStep]]:
    while end - start > 1:
        middle = start + _split(end - start, max(spare, 0))
        here = y
        for record in records[start:middle]:
            here = advance(record, here)
        if spare > 0:
            yield from _reverse(records, middle, end, here, spare - 1, fill, advance)
            end = middle
        else:  # no state to spare: walk to the last step each time
            yield fill(records[end - 1], here)
            end -= 1
    yield fill(records[start], y)


def _split(n: int, spare: int) -> int:
    """Length of the first part of a run of ``n`` steps; without spare states, all but the last step."""
    if spare == 0:
        return n - 1
    repeats = 1
    while math.comb(spare + 1 + repeats, repeats) < n:
        repeats += 1
    return min(n - 1, max(1, n - math.comb(spare + repeats, repeats)))
