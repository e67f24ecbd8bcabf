"""What is kept of the forward solve: its continuous solution, or states to compute it from again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from quadjoint.gradient.base import Task
from quadjoint.gradient.collocation.panels import Panel, Piece, piece_of, size_of
from quadjoint.gradient.cotangents import Cotangents
from quadjoint.gradient.discrete.checkpoints import StepRecorder
from quadjoint.gradient.discrete.sweep import replay
from quadjoint.gradient.discrete.tape import Tape
from quadjoint.gradient.first import First
from quadjoint.gradient.proof import Beginning, Proof
from quadjoint.solver.protocols import Clock, Step


class Trajectory:
    """The accepted steps of the forward solve as polynomials; as checkpoints with ``max_states``, or past the bytes."""

    def __init__(self, task: Task, first: First, max_states: int | None, max_bytes: int | None) -> None:
        self.task = task
        self.dynamics = Tape(task.f, first)
        self.beginning, self.activation_bytes = Beginning(first), first.activation_bytes or 0
        self.pieces: list[Piece] | None = None if max_states is not None else []
        self.clock: Clock | None = None  # the ends of the samples' own steps in the last of them
        self.kept, self.max_bytes = 0, max_bytes
        self.checkpoints: StepRecorder | None = None
        if max_states is not None or max_bytes is not None:
            self.checkpoints = StepRecorder(self.dynamics, stages=False, max_states=max_states, max_bytes=max_bytes)

    def __call__(self, step: Step) -> None:
        if self.checkpoints is not None:
            self.checkpoints(step)
        if self.pieces is None:
            return
        piece = piece_of(step)
        self.pieces.append(piece)
        self.clock = step.clock
        if self.max_bytes is not None:
            self.kept += size_of(piece)
            if self.kept > self.max_bytes:
                self.pieces = None
                self.task.say("memory ran short, so steps are taken again")

    def panels(self, task: Task, event: float | None, cotangents: Cotangents, depth: int) -> Iterator[Panel]:
        """Panels from last to first, 2**depth in every step; the last one ends at the event, if there was one."""
        proof = Proof(task)
        pieces = self._replayed(proof) if self.pieces is None else self._proven(self.pieces, proof)
        last = True
        for n, piece in pieces:
            high = 1.0
            if last and event is not None:
                high = (event - piece.t0) / (piece.t1 - piece.t0)
            last = False
            yield from _divided(Panel(n, piece, high=high, observations=cotangents.range_in_step(n)), cotangents, depth)
        proof.conclude()

    def _proven(self, kept: list[Piece], proof: Proof) -> Iterator[tuple[int, Piece]]:
        """The pieces that were kept; f is compared with what the forward solve had at t0 and, if known, in the end."""
        if kept:
            self.beginning.compare(self.task, proof)
        if len(kept) > 1:
            self._compare_last(kept[-1], proof)
        proof.conclude()
        yield from zip(range(len(kept) - 1, -1, -1), reversed(kept), strict=True)

    def _compare_last(self, piece: Piece, proof: Proof) -> None:
        """Compare f with the first stage of the last step, if that was one, at the time at which it was evaluated."""
        task, clock = self.task, self.clock
        start = piece.start()
        if start is None:
            return
        y, slope = start
        task.stats.backward_evaluations += 1
        if clock is None:
            found = task.f(piece.t0, y, piece.nudge[0])
        else:
            found = task.f(clock[0], y) * (clock[1] - clock[0]).to(slope.dtype)
        proof.compare(found, slope, slope)

    def _replayed(self, proof: Proof) -> Iterator[tuple[int, Piece]]:
        """Steps taken again from checkpoints, with the stages of the continuous extension."""
        assert self.checkpoints is not None
        task = self.task
        for record, step in self.checkpoints.backwards(partial(replay, task), proof):
            assert step is not None
            before = task.f.evaluations
            piece = piece_of(step)
            task.stats.backward_evaluations += task.f.evaluations - before
            yield record.index, piece


def _divided(panel: Panel, cotangents: Cotangents, depth: int) -> Iterator[Panel]:
    if depth == 0:
        yield panel
        return
    for half in panel.halves(cotangents.times):
        yield from _divided(half, cotangents, depth - 1)
