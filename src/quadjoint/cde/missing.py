"""Times of observations, and values between them for those that are missing.

Missing values are NaN. Times are shared by the batch, shape (L,), or each sample has its own, shape (B, L); NaN at the
end of a row of times is padding, and whatever the data have there counts as missing.
"""

from __future__ import annotations

import torch
from torch import Tensor


def check_path(x: Tensor, t: Tensor | None) -> Tensor:
    """The times of the observations, 0, 1, ... if none are given; refused in words if they are none of x."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x must be a floating point tensor of shape (..., length, channels); got {kind}.")
    if x.ndim < 2 or x.shape[-2] < 2:
        raise ValueError(
            f"x must have shape (..., length, channels) with at least two observations; got {tuple(x.shape)}."
        )
    if t is None:
        t = torch.arange(x.shape[-2], dtype=x.dtype, device=x.device)
    t = t.to(x.dtype) if isinstance(t, Tensor) and t.is_floating_point() else t
    check_times(t, x.shape[-2], batch=x.shape[:-2])
    return t


def check_times(t: Tensor, length: int, *, batch: torch.Size) -> None:
    """Refuse times that do not increase, or are not one for each of ``length`` observations."""
    if not isinstance(t, Tensor) or not t.is_floating_point():
        kind = t.dtype if isinstance(t, Tensor) else type(t).__name__
        raise TypeError(f"t must be a floating point tensor of times; got {kind}.")
    if t.shape != (length,) and (len(batch) != 1 or t.shape != (*batch, length)):
        raise ValueError(
            f"t must have shape ({length},), or (B, {length}) for times of each sample's own in a batch with one "
            f"dimension; got {tuple(t.shape)} for a batch of shape {tuple(batch)}."
        )
    there = ~t.isnan()
    rows = t.ndim == 2
    if not bool((there[..., :1].all() if rows else there.all()) & ~t.isinf().any()):
        raise ValueError("t must be finite; only the ends of rows of times per sample may be padded with NaN.")
    late = there[..., 1:]
    if not bool((there[..., :-1] | ~late).all()):
        raise ValueError("t has NaN between times; padding must come last.")
    if not bool(((t[..., 1:] > t[..., :-1]) | ~late).all()):
        raise ValueError(
            f"t must be strictly increasing in the precision of the data ({t.dtype}). Times far from zero have no room "
            "there: subtract the first one, or use torch.float64."
        )


def fill_end(t: Tensor) -> Tensor:
    """Times whose padding repeats the last one of the row."""
    if t.ndim == 1:
        return t
    last = (~t.isnan()).sum(dim=1, keepdim=True) - 1
    return torch.where(t.isnan(), t.gather(1, last), t)


def drop_padding(x: Tensor, t: Tensor) -> Tensor:
    """x with NaN where a row of times is padded."""
    return x if t.ndim == 1 else torch.where(t.isnan().unsqueeze(-1), torch.nan, x)


def fill_forward(x: Tensor) -> Tensor:
    """Repeat the last value of each channel where one is missing; what is missing at the start stays so."""
    latest = last_observed(~x.isnan())
    filled = x.gather(-2, latest.clamp(min=0))
    return torch.where(latest < 0, torch.nan, filled)


def last_observed(observed: Tensor) -> Tensor:
    """For every place along dimension -2 the index of the last observation up to it, -1 where there is none."""
    index = torch.arange(observed.shape[-2], device=observed.device).unsqueeze(-1)
    return torch.where(observed, index, -1).cummax(dim=-2).values


def next_observed(observed: Tensor) -> Tensor:
    """For every place along dimension -2 the index of the first observation from it on, L where there is none."""
    index = torch.arange(observed.shape[-2], device=observed.device).unsqueeze(-1)
    return torch.where(observed, index, observed.shape[-2]).flip(-2).cummin(dim=-2).values.flip(-2)


def fill_linear(x: Tensor, t: Tensor) -> Tensor:
    """Straight lines between the observations of each channel, constant before the first and after the last.

    A channel that was never observed is zero.
    """
    x = drop_padding(x, t)
    observed = ~x.isnan()
    if bool(observed.all()):
        return x
    before, after = last_observed(observed), next_observed(observed)
    left = torch.where(before < 0, after, before).clamp(max=x.shape[-2] - 1)
    right = torch.where(after == x.shape[-2], before, after).clamp(min=0)
    known = torch.where(observed, x, 0.0)  # no NaN in a product, forwards or backwards
    times = fill_end(t).unsqueeze(-1).expand(x.shape)
    start, stop = known.gather(-2, left), known.gather(-2, right)
    begin, end = times.gather(-2, left), times.gather(-2, right)
    length = end - begin
    share = torch.where(length == 0, 0.0, (times - begin) / torch.where(length == 0, 1.0, length))
    return start + share * (stop - start)
