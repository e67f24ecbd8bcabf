"""Paths through data: piecewise polynomials that can be evaluated and differentiated at any time.

A path has knots shared by its batch, shape (L,), or each sample has its own, shape (B, L) with NaN at the ends of
shorter rows. In the first case it goes on beyond its ends as its outermost pieces do, as torchcde's paths; in the
second each sample stands still before its first and after its last knot.
"""

from __future__ import annotations

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
    times are rows of a table, and a stack of times under ``torch.func.vmap`` is one look-up. The pieces of a sample are
    then between two more, on which it stands still.
    """

    _t: Tensor
    _knots: Tensor  # with padding filled
    _values: Tensor  # shape: (pieces, *batch, channels), or (B * (pieces + 2), channels)
    _rates: Tensor  # shape: (pieces, *batch, n, channels), or (B * (pieces + 2), n, channels)
    _edges: Tensor  # between two pieces, shape: (pieces - 1,) or (B, pieces + 1)
    _starts: Tensor  # of pieces, shape: (pieces,) or (B * (pieces + 2),)

    def __init__(self, values: Tensor, rates: Tensor, t: Tensor | None) -> None:
        """``values`` of shape (..., pieces, channels) and ``rates`` of shape (..., pieces, n, channels)."""
        super().__init__()
        pieces, self.batch = values.shape[-2], values.shape[:-2]
        if t is None:
            t = torch.arange(pieces + 1, dtype=values.dtype, device=values.device)
        t = t.to(values.device, values.dtype) if isinstance(t, Tensor) and t.is_floating_point() else t
        check_times(t, pieces + 1, batch=self.batch)
        self.per_sample = t.ndim == 2
        knots = fill_end(t)
        self.register_buffer("_t", t, persistent=False)
        self.register_buffer("_knots", knots, persistent=False)
        if self.per_sample:
            u = knots.diff(dim=1)[:, -1:, None]
            last = values[:, -1:] + u * _integral(rates[:, -1:], u)
            values = torch.cat([values[:, :1], values, last], dim=1).flatten(0, 1)
            rates = torch.nn.functional.pad(rates, (0, 0, 0, 0, 1, 1)).flatten(0, 1)
            before = torch.nextafter(knots[:, :1].detach(), torch.full_like(knots[:, :1], -torch.inf))
            edges = torch.cat([before, knots[:, 1:].detach()], dim=1)
            starts = torch.cat([knots[:, :1], knots], dim=1).flatten()
        else:
            values, rates = values.movedim(-2, 0), rates.movedim(-3, 0)
            edges, starts = knots[1:-1].detach(), knots[:-1]
        tensors = (values, rates, edges, starts)
        for name, tensor in zip(("_values", "_rates", "_edges", "_starts"), tensors, strict=True):
            self.register_buffer(name, tensor.contiguous(), persistent=False)

    @property
    def grid_points(self) -> Tensor:
        return self._t

    @property
    def interval(self) -> Tensor:
        return self._knots[..., [0, -1]]

    @property
    def lengths(self) -> Tensor:
        """Of the pieces, shape (pieces,) or (B, pieces); padding has none."""
        return self._knots.diff(dim=-1)

    @property
    def channels(self) -> int:
        return self._values.shape[-1]

    def evaluate(self, t: Tensor) -> Tensor:
        """X(t), shape (..., *t.shape, channels); for times per sample t is a number or (B, n), a row a sample."""
        t = self._times(t)
        index = _locate(t, self._edges)
        u = _distance(t, index, self._starts, trailing=self._values.ndim - 1)
        out = self._values[index] + u * _integral(self._rates[index], u)
        return _arrange(t, out, per_sample=self.per_sample)

    def derivative(self, t: Tensor) -> Tensor:
        """dX/dt, shaped as `evaluate` has it. At a kink it is that of the piece before."""
        return _derivative(self._times(t), self._rates, self._edges, self._starts)

    def derivative_parts(self) -> tuple[Any, Callable[..., Tensor], tuple[Tensor, ...]]:
        """What tells paths apart, `derivative` as a function of t and tensors, and these, for a compiled graph."""
        return ("path", self.per_sample), _derivative, (self._rates, self._edges, self._starts)

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
        values, rates = (table.transpose(0, 1) for table in (self._values, self._rates))
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


def _locate(t: Tensor, edges: Tensor) -> Tensor:
    """In which rows of the tables the times lie; a knot belongs to the piece before it.

    No value of t decides what is computed, so that vmap can stack times.
    """
    t = t.detach()
    if edges.ndim == 1:
        return torch.bucketize(t, edges)
    if t.shape[-1:] in ((), (1,)):
        index = (t > edges).sum(dim=1, keepdim=True)  # shape: (B, 1)
    else:
        index = torch.searchsorted(edges, t.expand(len(edges), -1).contiguous())
    count = edges.shape[1] + 1
    return index + torch.arange(0, count * len(edges), count, device=t.device).unsqueeze(1)


def _distance(t: Tensor, index: Tensor, starts: Tensor, *, trailing: int) -> Tensor:
    """From the starts of the pieces, with as many dimensions more as values in the tables have."""
    u = t - starts[index]
    return u.reshape(*u.shape, *(1,) * trailing)


def _integral(rates: Tensor, u: Tensor) -> Tensor:
    """The mean of a derivative with coefficients ``rates`` over a length u."""
    out = rates[..., -1, :] / rates.shape[-2]
    for n in range(rates.shape[-2] - 1, 0, -1):
        out = rates[..., n - 1, :] / n + u * out
    return out


def _derivative(t: Tensor, rates: Tensor, edges: Tensor, starts: Tensor) -> Tensor:
    index = _locate(t, edges)
    pieces = rates[index]
    out = pieces[..., -1, :]
    if pieces.shape[-2] > 1:
        u = _distance(t, index, starts, trailing=rates.ndim - 2)
        for n in range(pieces.shape[-2] - 1, 0, -1):
            out = pieces[..., n - 1, :] + u * out
    return _arrange(t, out, per_sample=edges.ndim == 2)


def _arrange(t: Tensor, out: Tensor, *, per_sample: bool) -> Tensor:
    """Dimensions of the times after those of the batch."""
    if per_sample:
        return out if t.ndim else out.squeeze(1)
    return out.movedim(tuple(range(t.ndim)), tuple(range(-1 - t.ndim, -1))) if t.ndim else out
