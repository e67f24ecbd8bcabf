"""Sums over stages, and the times of stages: what the steps of all methods are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.solver.protocols import Nudge, Time

Stages = Sequence[Tensor] | dict[int, Tensor]
Weights = Sequence[tuple[int, float]]  # those that are not zero, with their indices


def weighted(ks: Stages, weights: Weights, dt: Time) -> Tensor:
    """dt * sum of weights[j] * ks[j]."""
    (j, w), *rest = weights
    out = ks[j] * (w * dt)
    try:
        for j, w in rest:
            out = out + ks[j] * (w * dt) if isinstance(dt, Tensor) else out.add_(ks[j], alpha=w * dt)
    except RuntimeError:
        if not private.inside_transform():
            raise
        # vmap maps over a later stage and not over the first, into which it cannot be added.
        return torch.stack([ks[j] * (w * dt) for j, w in weights]).sum(0)
    return out


def combine(y: Tensor, ks: Stages, weights: Weights, dt: Time) -> Tensor:
    """y + dt * sum of weights[j] * ks[j], summed apart from y, which is then rounded once."""
    if not weights:
        return y
    if isinstance(dt, Tensor) and dt.ndim:  # a length for each sample
        (j, w), *rest = weights
        return torch.addcmul(y, weighted(ks, weights, 1.0), dt) if rest else torch.addcmul(y, ks[j], dt, value=w)
    if len(weights) == 1 and not isinstance(dt, Tensor):
        ((j, w),) = weights
        return torch.add(y, ks[j], alpha=w * dt)
    return y + weighted(ks, weights, dt)


def like_state(length: Time, y: Tensor) -> Time:
    """The length of a step in the precision of a state of one number, which would otherwise take that of the times."""
    return length.to(y.dtype.to_real()) if isinstance(length, Tensor) and not y.ndim else length


@overload
def stage_time(c: float, ends: tuple[float, float], length: float) -> float: ...
@overload
def stage_time(c: float, ends: tuple[Time, Time], length: Time) -> Time: ...
def stage_time(c: float, ends: tuple[Time, Time], length: Time) -> Time:
    """The time of a stage at the fraction c of a step; at its end to the last bit."""
    return ends[1] if c == 1.0 else ends[0] + c * length


def stage_nudge(c: float, nudge: Nudge) -> int:
    """On which side of its time a stage is evaluated: inside of the step at a discontinuity."""
    return nudge[0] if c == 0.0 else nudge[1] if c == 1.0 else 0


def nonzero(row: np.ndarray) -> list[tuple[int, float]]:
    return [(j, float(w)) for j, w in enumerate(row) if w != 0.0]
