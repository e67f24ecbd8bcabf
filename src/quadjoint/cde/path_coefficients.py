"""Coefficients of paths through data, as torchcde names and arranges them.

Data are tensors of shape (..., length, channels); a missing value is NaN. What these functions return is a tensor too,
so that it can be computed once, saved, and go through a ``DataLoader``; `LinearInterpolation` and `CubicSpline` make a
path of it. All are differentiable in the data, which may come from an encoder that is being learnt.

Paths (Kidger et al. 2020; Morrill et al. 2022): piecewise linear; rectilinear, where time moves on first and the values
then follow, so that nothing is known before it was observed; cubic Hermite splines whose slope at a knot is that of
the line behind it; natural cubic splines.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quadjoint.cde.missing import (
    check_path,
    drop_padding,
    fill_end,
    fill_forward,
    fill_linear,
    last_observed,
    next_observed,
)
from quadjoint.errors import warn_once


def linear_interpolation_coeffs(x: Tensor, t: Tensor | None = None, rectilinear: int | None = None) -> Tensor:
    """The values at the knots of a piecewise linear path, missing ones filled in: shape (..., length, channels).

    ``rectilinear`` is the index of the channel that holds time: the path then has 2 length - 1 knots, between which
    either time or the values change; a missing value stays the last one observed. Rows that end early have NaN in all
    channels, time included, from there on: the path stands still there.

    >>> x = torch.tensor([[0.0, 5.0], [1.0, float("nan")], [2.0, 7.0]])
    >>> linear_interpolation_coeffs(x)[:, 1]
    tensor([5., 6., 7.])
    >>> linear_interpolation_coeffs(x, rectilinear=0)
    tensor([[0., 5.],
            [1., 5.],
            [1., 5.],
            [2., 5.],
            [2., 7.]])
    """
    if rectilinear is not None:
        check_path(x, None)
        x = _in_steps(x, rectilinear)
    return fill_linear(x, check_path(x, t))


def _in_steps(x: Tensor, time: int) -> Tensor:
    """(t1, x1), (t2, x1), (t2, x2), (t3, x2), ...: the corners of a rectilinear path."""
    channels = x.shape[-1]
    if not isinstance(time, int) or not 0 <= time < channels:
        raise ValueError(f"rectilinear must be the index of the channel of times, 0 to {channels - 1}; got {time!r}.")
    missing = x[..., time].isnan()
    if bool(missing[..., 0].any()) or bool((missing[..., :-1] & ~missing[..., 1:]).any()):
        raise ValueError("The channel of times has NaN before its last time; only the end of a path may be padded.")
    if bool(x[..., 0, :].isnan().any()):
        warn_once(
            "rectilinear start",
            "A channel of the data begins with missing values, which its first observation fills: the path knows it "
            "before it was made. If it must not, put a value there, as the mean of the channel.",
        )
    filled = fill_forward(x)
    now = torch.arange(channels, device=x.device) == time
    corners = torch.stack([filled[..., :-1, :], torch.where(now, filled[..., 1:, :], filled[..., :-1, :])], dim=-2)
    return torch.cat([corners.flatten(-3, -2), filled[..., -1:, :]], dim=-2)


def hermite_cubic_coefficients_with_backward_differences(x: Tensor, t: Tensor | None = None) -> Tensor:
    """Cubic pieces whose slope at a knot is that of the straight line behind it: shape (..., length - 1, 4 channels).

    The path has a continuous derivative and knows no observation before the piece that leads to it.

    >>> hermite_cubic_coefficients_with_backward_differences(torch.tensor([[0.0], [1.0], [3.0]]))
    tensor([[ 0.,  1.,  0., -0.],
            [ 1.,  1.,  4., -3.]])
    """
    t = check_path(x, t)
    values = fill_linear(x, t)
    lengths = fill_end(t).unsqueeze(-1).diff(dim=-2)
    there = lengths > 0  # padding has no length
    lengths = torch.where(there, lengths, 1.0)
    slope = torch.where(there, values.diff(dim=-2) / lengths, 0.0)
    behind = torch.cat([slope[..., :1, :], slope[..., :-1, :]], dim=-2)
    b = torch.where(there, behind, 0.0)
    change = (slope - b) / lengths
    return torch.cat([values[..., :-1, :], b, 4 * change, -3 * change / lengths], dim=-1)


def natural_cubic_coeffs(x: Tensor, t: Tensor | None = None) -> Tensor:
    """The natural cubic spline of each channel through its observations: shape (..., length - 1, 4 channels).

    Before the first and after the last observation of a channel, its value there is taken as observed.

    >>> x = torch.tensor([[0.0], [1.0], [0.0]])
    >>> natural_cubic_coeffs(x)  # value, slope, twice and three times the further coefficients
    tensor([[ 0.0000,  1.5000,  0.0000, -1.5000],
            [ 1.0000,  0.0000, -3.0000,  1.5000]])
    """
    return _natural_spline(x, t, everywhere=True)


def natural_cubic_spline_coeffs(x: Tensor, t: Tensor | None = None) -> Tensor:
    """As `natural_cubic_coeffs`, with only the first and the last value filled in; torchcde keeps it for old programs.

    >>> natural_cubic_spline_coeffs(torch.tensor([[0.0], [1.0], [0.0]])).shape
    torch.Size([2, 4])
    """
    return _natural_spline(x, t, everywhere=False)


def _natural_spline(x: Tensor, t: Tensor | None, *, everywhere: bool) -> Tensor:
    t = check_path(x, t)
    x, times = drop_padding(x, t), fill_end(t)
    x, times = x.transpose(-1, -2), times.unsqueeze(-2)  # shapes: (..., C, L) and (..., 1, L)
    padded = None if t.ndim == 1 else t.isnan().unsqueeze(-2)
    if not bool(x.isnan().any()):
        parts = _spline_pieces(times, x)
    else:
        x = _extend(x, padded, everywhere=everywhere)
        parts = _spline_through_observed(times.expand(x.shape), x)
    return torch.cat([part.transpose(-1, -2) for part in parts], dim=-1)


def _extend(x: Tensor, padded: Tensor | None, *, everywhere: bool) -> Tensor:
    """Values before the first and after the last observation, at all times or at the outermost; padding has none."""
    observed = (~x.isnan()).transpose(-1, -2)
    first, last = next_observed(observed)[..., :1, :], last_observed(observed)[..., -1:, :]
    first, last = (index.transpose(-1, -2) for index in (first, last))  # shapes: (..., C, 1)
    index = torch.arange(x.shape[-1], device=x.device)
    end = x.shape[-1] - 1 if padded is None else (~padded).sum(-1, keepdim=True) - 1
    early = (index < first) & (index <= end) & (everywhere | (index == 0))
    late = (index > last) & (index <= end) & (everywhere | (index == end))
    known = torch.where(x.isnan(), 0.0, x)
    start, stop = known.gather(-1, first.clamp(max=x.shape[-1] - 1)), known.gather(-1, last.clamp(min=0))
    return torch.where(early, start, torch.where(late, stop, x))


def _spline_through_observed(t: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """The spline of every row through its own observations, as pieces between all times.

    The observations of a row are moved to its front, the spline is computed there, and its pieces are moved on to where
    each interval between two times begins.
    """
    observed = ~x.isnan()
    order = (~observed).to(torch.int8).argsort(dim=-1, stable=True)
    count = observed.sum(dim=-1, keepdim=True)
    knots, values = t.gather(-1, order), torch.where(observed, x, 0.0).gather(-1, order)
    there = torch.arange(1, x.shape[-1], device=x.device) < count
    piece = (observed.cumsum(dim=-1)[..., :-1] - 1).clamp(min=0, max=x.shape[-1] - 2)
    a, b, two_c, three_d = (part.gather(-1, piece) for part in _spline_pieces(knots, values, there))
    step = t[..., :-1] - knots.gather(-1, piece)
    return (
        a + step * (b + step * (0.5 * two_c + step * three_d / 3)),
        b + step * (two_c + step * three_d),
        two_c + 2 * step * three_d,
        three_d,
    )


def _spline_pieces(t: Tensor, x: Tensor, there: Tensor | None = None) -> tuple[Tensor, ...]:
    """a, b, 2c and 3d of a + b u + c u² + d u³ on the pieces of a natural cubic spline, of which ``there`` are some.

    The slopes k at the knots solve a tridiagonal system: the second derivative is continuous and zero at the ends.
    """
    lengths = t.diff(dim=-1)
    rate = lengths.reciprocal() if there is None else torch.where(there, 1.0 / torch.where(there, lengths, 1.0), 0.0)
    rise = rate * x.diff(dim=-1)  # the slope of the line
    pad = torch.nn.functional.pad
    diagonal = 2 * (pad(rate, (0, 1)) + pad(rate, (1, 0)))
    if there is not None:
        diagonal = torch.where(diagonal == 0, 1.0, diagonal)
    weighted = 3 * rise * rate
    k = _solve_tridiagonal(rate, diagonal, pad(weighted, (0, 1)) + pad(weighted, (1, 0)))
    k0, k1 = k[..., :-1], k[..., 1:]
    if there is not None:
        k0, k1 = (torch.where(there, slope, 0.0) for slope in (k0, k1))  # past the last knot the value stands still
    return x[..., :-1], k0, (6 * rise - 4 * k0 - 2 * k1) * rate, 3 * (k0 + k1 - 2 * rise) * rate * rate


def _solve_tridiagonal(off: Tensor, diagonal: Tensor, right: Tensor) -> Tensor:
    """Solve symmetric tridiagonal systems along the last dimension by elimination (no pivots: they dominate)."""
    offs, diagonals, rights = (list(part.unbind(-1)) for part in (off, diagonal, right))
    for i in range(1, len(diagonals)):
        share = offs[i - 1] / diagonals[i - 1]
        diagonals[i] = diagonals[i] - share * offs[i - 1]
        rights[i] = rights[i] - share * rights[i - 1]
    out = [rights[-1] / diagonals[-1]]
    for i in range(len(diagonals) - 2, -1, -1):
        out.append((rights[i] - offs[i] * out[-1]) / diagonals[i])
    return torch.stack(out[::-1], dim=-1)
