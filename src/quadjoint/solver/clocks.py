"""Maps from a clock that the whole batch shares to the time of each sample."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from quadjoint.autograd import private


def wide(device: torch.device) -> torch.dtype:
    """The dtype in which times are added up: float64, if the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def on_the_host(t: Tensor, name: str = "t") -> np.ndarray:
    """Times as an array in float64."""
    numbers = t.detach().to("cpu", torch.float64)
    if not private.inside_transform():
        return numbers.numpy()
    try:
        return np.array(numbers.tolist())  # tensors of a transform have no memory of their own
    except RuntimeError as error:
        raise ValueError(
            f"{name} cannot be mapped over by torch.func.vmap. Instead, give {name} of shape (B, K), with times for "
            "each of the B samples in y0."
        ) from error


class LinearMap:
    """s in [0, 1] to each sample's time from its first to its last: one smooth solve for the whole batch.

    Times are added up in float64, as far as the device has it, and rounded for f last.
    """

    end = 1.0

    def __init__(self, t: Tensor, y: Tensor) -> None:
        shape, self.dtype = (-1, *(1,) * (y.ndim - 1)), y.dtype.to_real()
        self.clock_dtype = self.dtype
        self.ends = t.detach()[:, [0, -1]].to("cpu", torch.float64)
        self.start, self.stop = (self.ends[:, i].reshape(shape).to(y.device, wide(y.device)) for i in (0, 1))
        self.rate = (self.ends[:, 1] - self.ends[:, 0]).reshape(shape).to(y.device, self.dtype)

    def __call__(self, s: Tensor) -> tuple[Tensor, Tensor]:
        # Exact at both ends, beyond which f may be another function.
        return torch.lerp(self.start, self.stop, s.to(self.start.dtype)).to(self.dtype), self.rate

    def times(self, s: np.ndarray) -> np.ndarray:
        """The times of each sample at its row of s, shape (B, n)."""
        first, last = on_the_host(self.ends).T[:, :, None]
        return first + s * (last - first)

    def inverse(self, t: np.ndarray) -> np.ndarray:
        """Where each sample's times lie between its first and its last, shape (B, n)."""
        first, last = on_the_host(self.ends).T[:, :, None]
        length = last - first
        return np.clip((t - first) / np.where(length == 0, 1.0, length), 0.0, 1.0)

    def parts(self) -> tuple[Callable[..., tuple[Tensor, Tensor]], tuple[Tensor, ...]]:
        """The map as a function of s and of tensors, for a compiled graph that serves all maps of this kind."""
        tensors = self.start.to(self.dtype), self.stop.to(self.dtype), self.rate
        return (lambda s, start, stop, rate: (torch.lerp(start, stop, s), rate)), tensors


class PiecewiseMap:
    """s in [k, k + 1] to each sample's time between its entries k and k + 1 of a table: all samples get there at once.

    A time of piece k never rounds to one of the ends of the piece, so that f, which may have a discontinuity there, is
    evaluated on the side of the piece.
    """

    def __init__(self, t: Tensor, y: Tensor) -> None:
        self.shape, self.dtype = (-1, *(1,) * (y.ndim - 1)), y.dtype.to_real()
        self.table = t.detach().to("cpu", torch.float64)  # shape: (B, K)
        rounded = self.table.to(self.dtype)
        first, last = rounded[:, :-1], rounded[:, 1:]
        inside = torch.stack([torch.nextafter(first, last), torch.nextafter(last, first)]).double()
        low, high = inside.amin(0), inside.amax(0)
        pieces = torch.stack([self.table[:, :-1], self.table.diff(dim=1), low, high])
        self.pieces = pieces.movedim(2, 0).contiguous().to(y.device, wide(y.device))  # shape: (K - 1, 4, B)
        self.end = float(len(self.pieces))
        self.clock_dtype = wide(y.device)  # of s, which has k before the point

    def __call__(self, s: Tensor) -> tuple[Tensor, Tensor]:
        return _piecewise(s, self.pieces, self.dtype, self.shape)

    def times(self, s: np.ndarray) -> np.ndarray:
        """The times of each sample at its row of s, shape (B, n)."""
        table = on_the_host(self.table)
        k = np.clip(np.floor(s), 0, table.shape[1] - 2).astype(np.int64)
        first, last = (np.take_along_axis(table, i, axis=1) for i in (k, k + 1))
        return first + (s - k) * (last - first)

    def inverse(self, t: np.ndarray) -> np.ndarray:
        """Where on the common clock each sample reaches its times, shape (B, n)."""
        out = np.empty_like(t)
        for row, times, s in zip(on_the_host(self.table), t, out, strict=True):
            sign = 1.0 if row[-1] >= row[0] else -1.0
            distinct, first = np.unique(sign * row, return_index=True)
            s[:] = np.interp(sign * times, distinct, first.astype(np.float64))
        return out

    def parts(self) -> tuple[Callable[..., tuple[Tensor, Tensor]], tuple[Tensor, ...]]:
        """The map as a function of s and of tensors, for a compiled graph that serves all maps of this kind."""
        dtype, shape = self.dtype, self.shape
        return (lambda s, pieces: _piecewise(s, pieces, dtype, shape)), (self.pieces,)


Clocks = LinearMap | PiecewiseMap


def _piecewise(s: Tensor, pieces: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    k = s.detach().floor().clamp(0, len(pieces) - 1).long()
    first, rate, low, high = pieces[k.reshape(1)].squeeze(0).unbind(0)  # by a vector, of which the host reads nothing
    t = torch.clamp(first + (s - k) * rate, low, high)
    return t.to(dtype).reshape(shape), rate.to(dtype).reshape(shape)
