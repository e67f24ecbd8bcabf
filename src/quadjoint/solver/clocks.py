"""Maps from a clock that the whole batch shares to the time of each sample."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(device: torch.device) -> torch.dtype:
    """The dtype in which times are added up: float64, if the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


class LinearMap:
    """s in [0, 1] to each sample's time from its first to its last: one smooth solve for the whole batch.

    Times are added up in float64, as far as the device has it, and rounded for f last.
    """

    def __init__(self, t: Tensor, y: Tensor) -> None:
        shape, self.dtype = (-1, *(1,) * (y.ndim - 1)), y.dtype.to_real()
        ends = t.detach()[:, [0, -1]].to("cpu", torch.float64)
        self.start = ends[:, 0].reshape(shape).to(y.device, wide(y.device))
        self.length = (ends[:, 1] - ends[:, 0]).reshape(shape).to(y.device, wide(y.device))
        self.rate = self.length.to(self.dtype)

    def __call__(self, s: Tensor) -> tuple[Tensor, Tensor]:
        return (self.start + s * self.length).to(self.dtype), self.rate


class PiecewiseMap:
    """s in [k, k + 1] to each sample's time between the k-th and the next row of a table, shape (K, B).

    Of observations, such that all samples observe at once; or of the samples' own steps.
    """

    def __init__(self, table: Tensor, y: Tensor) -> None:
        self.shape, self.dtype = (-1, *(1,) * (y.ndim - 1)), y.dtype.to_real()
        self.clock_dtype = wide(y.device)  # of s, which has k before the point
        self.table, self.rates = (x.to(y.device, self.clock_dtype) for x in (table, table.diff(dim=0)))

    def __call__(self, s: Tensor) -> tuple[Tensor, Tensor]:
        k = s.detach().floor().clamp(0, len(self.rates) - 1).long()
        t = self.table[k] + (s - k) * self.rates[k]
        return t.to(self.dtype).reshape(self.shape), self.rates[k].to(self.dtype).reshape(self.shape)
