"""Paths through data: piecewise polynomials that can be evaluated and differentiated at any time.

A path has knots shared by its batch, shape (L,), or each sample has its own, shape (B, L) with NaN at the ends of
shorter rows. In the first case it goes on beyond its ends as its outermost pieces do, as torchcde's paths; in the
second each sample stands still before its first and after its last knot.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from quadjoint.cde.missing import check_times, fill_end


class InterpolationBase(nn.Module, ABC):
    """What a control is: a path X(t) with a derivative. Subclass it for one of your own."""

    @property
    @abstractmethod
    def grid_points(self) -> Tensor:
        """The knots."""

    @property
    @abstractmethod
    def interval(self) -> Tensor:
        """The first and the last time, shape (2,), or (B, 2) for times of each sample's own."""

    @property
    def kinks(self) -> Tensor | None:
        """Times at which the derivative jumps, (J,) or (B, J) padded with NaN: a solve ends steps there."""
        return None

    @abstractmethod
    def evaluate(self, t: Tensor) -> Tensor:
        """X(t): shape (..., *t.shape, channels)."""

    @abstractmethod
    def derivative(self, t: Tensor) -> Tensor:
        """dX/dt: shape (..., *t.shape, channels)."""


class PiecewisePath(InterpolationBase):
    """A polynomial in t - t_k on every piece: ``values`` at the knots t_k, and ``rates`` of the derivative.

    Both have the pieces first, for times per sample those of all samples one after another, so that the pieces at some
    times are rows of a table, and a stack of times under ``torch.func.vmap`` is one look-up.
    """

    _t: Tensor
    _values: Tensor  # shape: (pieces, *batch, channels), or (B * pieces, channels)
    _rates: Tensor  # shape: (pieces, *batch, n, channels), or (B * pieces, n, channels)
    _inner: Tensor  # knots between two pieces
    _knots: Tensor  # with padding filled

    def __init__(self, values: Tensor, rates: Tensor, t: Tensor | None) -> None:
        """``values`` of shape (..., pieces, channels) and ``rates`` of shape (..., pieces, n, channels)."""
        super().__init__()
        pieces, self.batch = values.shape[-2], values.shape[:-2]
        if t is None:
            t = torch.arange(pieces + 1, dtype=values.dtype, device=values.device)
        else:
            t = t.to(values.device, values.dtype) if isinstance(t, Tensor) and t.is_floating_point() else t
            check_times(t, pieces + 1, batch=self.batch)
        self.per_sample = t.ndim == 2
        filled = fill_end(t)
        if self.per_sample:
            values, rates = values.flatten(0, 1), rates.flatten(0, 1)
        else:
            values, rates = values.movedim(-2, 0), rates.movedim(-3, 0)
        tensors = (t, values.contiguous(), rates.contiguous(), filled[..., 1:-1].contiguous(), filled)
        for name, tensor in zip(("_t", "_values", "_rates", "_inner", "_knots"), tensors, strict=True):
            self.register_buffer(name, tensor, persistent=False)

    @property
    def grid_points(self) -> Tensor:
        return self._t

    @property
    def interval(self) -> Tensor:
        return self._knots[..., [0, -1]]

    @property
    def channels(self) -> int:
        return self._values.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        return self._values.dtype

    def evaluate(self, t: Tensor) -> Tensor:
        """X(t), shape (..., *t.shape, channels); for times per sample t is a number or (B, n), a row a sample."""
        t = self._times(t)
        index, u = _locate(t, self._inner, self._knots, batch=self.batch)
        rates = self._rates[index]
        out = rates[..., -1, :] / rates.shape[-2]
        for n in range(rates.shape[-2] - 1, 0, -1):
            out = rates[..., n - 1, :] / n + u * out
        return _arrange(t, self._values[index] + u * out, per_sample=self.per_sample)

    def derivative(self, t: Tensor) -> Tensor:
        """dX/dt, shaped as `evaluate` has it. At a kink it is that of the piece before."""
        return _derivative(self._times(t), self._rates, self._inner, self._knots, batch=self.batch)

    def derivative_parts(self) -> tuple[Any, Callable[..., Tensor], tuple[Tensor, ...]]:
        """What tells paths apart, `derivative` as a function of t and tensors, and these, for a compiled graph."""
        derivative = functools.partial(_derivative, batch=self.batch)
        return (self.per_sample, self.batch), derivative, (self._rates, self._inner, self._knots)

    def bends(self, rtol: float) -> Tensor | None:
        """Knots at which a path with a continuous derivative bends too sharply for steps across them, if any."""
        return None

    def expand_times(self) -> PiecewisePath:
        """The same path with times of each sample's own, which are then all alike."""
        if self.per_sample:
            return self
        if len(self.batch) != 1:
            raise ValueError(
                f"Times per sample need a batch with one dimension; this path has a batch of shape {tuple(self.batch)}."
            )
        values, rates = self._values.transpose(0, 1), self._rates.transpose(0, 1)
        out = PiecewisePath.__new__(type(self))
        PiecewisePath.__init__(out, values, rates, self._t.expand(*self.batch, -1))
        return out

    def _times(self, t: Tensor | float) -> Tensor:
        t = torch.as_tensor(t, dtype=self._values.dtype, device=self._values.device)
        if self.per_sample and t.ndim and t.shape[:-1] not in ((), self.batch):
            raise ValueError(
                f"This path has times of each sample's own: t must be a number or have shape ({self.batch[0]}, n), a "
                f"row a sample; got {tuple(t.shape)}."
            )
        return t

    def extra_repr(self) -> str:
        own = ", times per sample" if self.per_sample else ""
        return f"batch={tuple(self.batch)}, knots={self._t.shape[-1]}, channels={self.channels}{own}"


def _locate(t: Tensor, inner: Tensor, knots: Tensor, *, batch: torch.Size) -> tuple[Tensor, Tensor]:
    """In which rows of the tables the times lie, and how far from the starts of the pieces.

    A knot belongs to the piece before it. No value of t decides what is computed, so that vmap can stack times.
    """
    if knots.ndim == 1:
        index = torch.bucketize(t.detach(), inner)
        u = t - knots[index]
        return index, u.reshape(*t.shape, *(1,) * (len(batch) + 1))
    t = torch.clamp(t, knots[:, :1], knots[:, -1:])  # shape: (B, n)
    if t.shape[1] == 1:
        index = (t.detach() > inner).sum(dim=1, keepdim=True)
    else:
        index = torch.searchsorted(inner, t.detach().contiguous())
    u = t - knots.gather(1, index)
    rows = torch.arange(len(knots), device=t.device).unsqueeze(1)
    return index + (knots.shape[1] - 1) * rows, u.unsqueeze(-1)


def _derivative(t: Tensor, rates: Tensor, inner: Tensor, knots: Tensor, *, batch: torch.Size) -> Tensor:
    index, u = _locate(t, inner, knots, batch=batch)
    pieces = rates[index]
    out = pieces[..., -1, :]
    for n in range(pieces.shape[-2] - 1, 0, -1):
        out = pieces[..., n - 1, :] + u * out
    if knots.ndim == 2:
        inside = (t >= knots[:, :1]) & (t <= knots[:, -1:])
        out = out * inside.unsqueeze(-1)
    return _arrange(t, out, per_sample=knots.ndim == 2)


def _arrange(t: Tensor, out: Tensor, *, per_sample: bool) -> Tensor:
    """Dimensions of the times after those of the batch."""
    if per_sample:
        return out if t.ndim else out.squeeze(1)
    return out.movedim(tuple(range(t.ndim)), tuple(range(-1 - t.ndim, -1))) if t.ndim else out
