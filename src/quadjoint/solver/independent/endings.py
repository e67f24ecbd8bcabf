"""How the solve of each sample ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from quadjoint.errors import NonFiniteStateError, SolveError, StepSizeUnderflowError, TooManyStepsError


class Ending(IntEnum):
    """Why the solve of a sample ended."""

    LAST_TIME = 0  # it got to the last of its times
    EVENT = 1
    STEP_TOO_SMALL = 2
    NOT_FINITE = 3
    TOO_MANY_STEPS = 4


REASONS = {
    Ending.STEP_TOO_SMALL: "the step size fell below the resolution of time, or as far as options['min_step'] allows",
    Ending.NOT_FINITE: "the dynamics are not finite there",
    Ending.TOO_MANY_STEPS: "max_num_steps were not enough",
}
ERRORS: dict[Ending, type[SolveError]] = {
    Ending.STEP_TOO_SMALL: StepSizeUnderflowError,
    Ending.NOT_FINITE: NonFiniteStateError,
    Ending.TOO_MANY_STEPS: TooManyStepsError,
}
REMEDIES = {
    Ending.STEP_TOO_SMALL: "The problem may be stiff or discontinuous there, or its solution blow up: loosen rtol/atol "
    "or use an implicit method.",
    Ending.NOT_FINITE: "Look for a division by zero, a log or root of a negative number, or a solution that blows up.",
    Ending.TOO_MANY_STEPS: "Raise options['max_num_steps'], loosen the tolerances or, if the problem is stiff, use an "
    "implicit method.",
}
SHOWN = 5  # samples that a message names


@dataclass(frozen=True)
class Status:
    """How the solves of a batch ended: of every sample the reason, an `Ending`, and the time that it reached.

    Of a solve with an event and steps that the batch shares, both are of the whole batch.

    >>> import torch, quadjoint as qj
    >>> t = torch.tensor([0.0, 2.0])
    >>> y0 = torch.tensor([[1.0], [0.25]])  # of which the first blows up at t = 1
    >>> sol = qj.solve(lambda t, y: y * y, y0, t, independent=True, options={"on_failure": "nan"})
    >>> sol.status.failed
    tensor([ True, False])
    >>> sol.status[0].name, round(float(sol.status.t[0]), 3)
    ('STEP_TOO_SMALL', 1.0)
    """

    codes: Tensor  # (B,) or (), values of Ending
    t: Tensor  # (B,) or (), the time reached: the last one, that of the event, or where the solve failed

    def __len__(self) -> int:
        return len(self.codes)

    def to(self, device: torch.device) -> Status:
        """The same on another device."""
        return Status(self.codes.to(device), self.t.to(device))

    def __getitem__(self, sample: int) -> Ending:
        return Ending(int(self.codes[sample]))

    @property
    def failed(self) -> Tensor:
        """Which samples could not be solved, shape (B,)."""
        return self.codes > Ending.EVENT

    @property
    def event(self) -> Tensor:
        """Which samples ended at an event, shape (B,)."""
        return self.codes == Ending.EVENT

    def __str__(self) -> str:
        codes = self.codes.reshape(-1).tolist()
        counts = {ending: codes.count(ending) for ending in Ending}
        return ", ".join(f"{ending.name}: {count}" for ending, count in counts.items() if count)


def failure(codes: Tensor, t: Tensor, h: Tensor) -> SolveError:
    """The error that names the samples which failed, with their times and reasons."""
    where = (codes > Ending.EVENT).nonzero().flatten().tolist()
    reasons = [Ending(code) for code in codes[where].tolist()]
    times, lengths = t[where].tolist(), h[where].abs().tolist()
    named = [
        f"sample {b} at t = {at:.9g}{f' (step size {length:.3g})' if length > 0.0 else ''}: {REASONS[reason]}"
        for b, at, length, reason in list(zip(where, times, lengths, reasons, strict=True))[:SHOWN]
    ]
    more = f"; and {len(where) - SHOWN} more" if len(where) > SHOWN else ""
    kind = max(set(reasons), key=reasons.count)
    return ERRORS[kind](
        f"{len(where)} of {len(codes)} samples could not be solved. {'; '.join(named)}{more}. {REMEDIES[kind]} "
        "options={'on_failure': 'nan'} goes on without them, 'stop' keeps what they have reached."
    )


def unreached(times: Tensor, sign: Tensor, ended_at: Tensor) -> Tensor:
    """Which of the times (B, K) lie past the end of their sample; the last one stands for the end itself."""
    late = (times - ended_at[:, None]) * sign[:, None] > 0.0
    late[:, -1] = False
    return late


def no_failures(count: int, device: torch.device) -> Tensor:
    """Codes of samples that have not ended otherwise than at their last time."""
    return torch.zeros(count, dtype=torch.int64, device=device)
