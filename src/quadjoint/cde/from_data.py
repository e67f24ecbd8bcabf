"""From data to a path in one call: the channels that a neural CDE wants, interpolated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from quadjoint.cde.missing import check_path
from quadjoint.cde.path_coefficients import (
    hermite_cubic_coefficients_with_backward_differences,
    linear_interpolation_coeffs,
    natural_cubic_coeffs,
)
from quadjoint.cde.paths import PiecewisePath
from quadjoint.cde.splines import CubicSpline, LinearInterpolation
from quadjoint.errors import nearest

Kind = Literal["hermite", "natural", "linear", "rectilinear"]
_CUBIC: Mapping[str, Callable[..., Tensor]] = {
    "hermite": hermite_cubic_coefficients_with_backward_differences,
    "natural": natural_cubic_coeffs,
}


def interpolate(
    x: Tensor, t: Tensor | None = None, *, kind: Kind = "hermite", time: bool = True, counts: bool = False
) -> PiecewisePath:
    """A path through observations x, shape (..., length, channels), made at times t; NaN is a missing value.

    Args:
        x: the observations.
        t: their times, (length,) or, for each sample its own, (B, length) with NaN at the ends of shorter rows; by
            default 0, 1, ...
        kind: "hermite" (cubic, with a continuous derivative), "natural" (cubic splines, which look ahead), "linear", or
            "rectilinear" (linear, and nothing is known before it was observed).
        time: put time in front as a channel, without which a CDE does not see how fast a path is run through.
        counts: append the number of observations of each channel so far, which tells how much is missing.

    A rectilinear path runs through its corners, two an observation, at the times 0, 1, ... 2 length - 2, whatever t is:
    the times of the observations are a channel of it.

    >>> x = torch.tensor([[[1.0], [float("nan")], [3.0]], [[2.0], [0.0], [float("nan")]]])
    >>> t = torch.tensor([[0.0, 0.5, 2.0], [0.0, 1.0, float("nan")]])
    >>> X = interpolate(x, t, kind="linear")
    >>> X.evaluate(torch.tensor(0.5))  # time and value of each sample
    tensor([[0.5000, 1.5000],
            [0.5000, 1.0000]])
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind = {kind!r} is not known.{nearest(kind, get_args(Kind))}")
    if kind == "rectilinear" and not time:
        raise ValueError("A rectilinear path needs time as a channel; leave time=True.")
    times = check_path(x, t)
    padding = times.isnan().expand(x.shape[:-1]).unsqueeze(-1)
    parts = [x]
    if time:
        parts.insert(0, times.unsqueeze(-1).expand(*x.shape[:-1], 1))
    if counts:
        observed = ~(x.isnan() | padding)
        parts.append(torch.where(padding, torch.nan, observed.cumsum(dim=-2).to(x.dtype)))
    data = torch.cat(parts, dim=-1)
    if kind == "rectilinear":
        return LinearInterpolation(linear_interpolation_coeffs(torch.where(padding, torch.nan, data), rectilinear=0))
    if kind == "linear":
        return LinearInterpolation(linear_interpolation_coeffs(data, times), times)
    return CubicSpline(_CUBIC[kind](data, times), times)
