"""What a batch of independent solves has instead of a common clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

UP, DOWN = "up", "down"
DIRECTIONS = (UP, DOWN, "both")  # in which an event function may change its sign
ON_FAILURE = ("error", "nan", "stop")


@dataclass(frozen=True)
class Samples:
    """Times of every sample, and what ends its solve besides the last of them."""

    times: Tensor  # (B, K) in wide precision on the state's device, padding filled with the last time of a row
    ndim: int  # dimensions of the state
    backwards: bool = False  # whether any sample is solved backwards in time
    padded: Tensor | None = None  # (B, K), which of the times are padding; None if none is
    on_failure: str = "error"
    event_direction: str = "both"

    def __len__(self) -> int:
        return len(self.times)

    @cached_property
    def sign(self) -> Tensor:
        """One for samples that are solved forwards in time, minus one for the others, shape (B,)."""
        return torch.where(self.times[:, -1] < self.times[:, 0], -1.0, 1.0).to(self.times)

    def forwards(self, t: Tensor) -> Tensor:
        """Times (B,) on clocks that run forwards: negated for samples that are solved backwards in time, and back."""
        return t * self.sign if self.backwards else t

    @cached_property
    def start(self) -> Tensor:
        """The initial times, shaped to broadcast against the state."""
        return self.shaped(self.times[:, 0])

    def shaped(self, values: Tensor) -> Tensor:
        """A number for each sample, shape (B,), shaped to broadcast against the state."""
        return values.reshape(-1, *(1,) * (self.ndim - 1))


def listed(numbers: Sequence[int], most: int = 5) -> str:
    """Indices for a message, the first few of them."""
    shown = ", ".join(str(n) for n in numbers[:most])
    return f"{shown} and {len(numbers) - most} more" if len(numbers) > most else shown
