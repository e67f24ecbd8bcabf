"""Graphs of evaluations that the forward solve keeps, so that the backward pass need not evaluate them again."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from quadjoint.autograd.recorded import NOTHING, Recording, record
from quadjoint.gradient.first import First, StartedDynamics
from quadjoint.solver.dynamics import Dynamics
from quadjoint.solver.protocols import Time


class Tape(StartedDynamics):
    """Dynamics whose evaluations are recorded although the solve runs without grad, ``left`` of them in all.

    What is kept belongs to accepted steps; graphs of rejected ones are dropped.
    """

    def __init__(
        self,
        f: Dynamics,
        first: First | None,
        *,
        left: int = 0,
        within: AbstractContextManager[Any] = NOTHING,
        keep_first: bool = False,
    ) -> None:
        super().__init__(f, first)
        self.left, self.within, self.keep_first = left, within, keep_first
        self.pending: dict[int, tuple[Tensor, Recording]] = {}  # by the identity of what the solver has received

    def __call__(self, t: Time, y: Tensor, nudge: int = 0) -> Tensor:
        first = None if self.first is None else self.begun(t, y, nudge)
        if first is not None:
            kept = self.keep_first and self.left and first.stands_alone()
            return self._keep(first.recording) if kept else first.value
        if len(self.pending) >= self.left:
            return self.f(t, y, nudge)
        self.f.evaluations += 1
        return self._keep(record(self.f.checked, self.f.time(t, nudge), y, self.within))

    def _keep(self, recording: Recording) -> Tensor:
        plain = recording.out.detach()
        if recording.out.requires_grad:
            self.pending[id(plain)] = plain, recording
        return plain

    def take(self, ks: list[Tensor]) -> list[Recording | None]:
        """The graphs of an accepted step's stages."""
        recordings = [self.pending.get(id(k), (k, None))[1] for k in ks]
        self.pending.clear()
        self.left = max(0, self.left - sum(g is not None for g in recordings))
        return recordings
