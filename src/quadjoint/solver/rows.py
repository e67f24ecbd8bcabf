"""Rows that are collected, and then joined."""

from __future__ import annotations

import torch
from torch import Tensor


class Rows:
    """Tensors that wait until it pays to join them along their first dimension, one or several columns of them."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, ...]] = []
        self.count = 0  # rows that wait

    def add(self, *parts: Tensor) -> None:
        """Add some rows, the same number of every column."""
        self.parts.append(parts)
        self.count += len(parts[0])

    def take(self) -> tuple[Tensor, ...]:
        """All that has been added since the last call, a copy of each column."""
        parts, self.parts, self.count = self.parts, [], 0
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))
