"""The arithmetic of Runge-Kutta stages: sums of them, their times, and the stages of an explicit step one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.solver.protocols import Nudge, Time, VectorField

if TYPE_CHECKING:
    from quadjoint.solver.methods.runge_kutta import RungeKutta

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


def stage_time(c: float, ends: tuple[Time, Time], length: Time) -> Time:
    """The time of a stage at the fraction c of a step; at its end to the last bit."""
    return ends[1] if c == 1.0 else ends[0] + c * length


def stage_nudge(c: float, nudge: Nudge) -> int:
    """On which side of its time a stage is evaluated: inside of the step at a discontinuity."""
    return nudge[0] if c == 0.0 else nudge[1] if c == 1.0 else 0


def take_stages(
    method: RungeKutta,
    f: VectorField,
    ends: tuple[Time, Time],
    y: Tensor,
    k: Tensor,
    *,
    dt: Time,
    length: Time,
    nudge: Nudge = (0, 0),
    times: Sequence[Time] | None = None,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """The stages of a step whose first one is ``k``, their inputs, and the end of the step.

    ``length`` is that of the step in time; ``dt`` is the same, shaped to broadcast against states. ``times`` are those
    of the stages, if they are known already.
    """
    ks, inputs = [k], [y]
    for i in range(1, method.stages):
        c = method.nodes[i]
        inputs.append(combine(y, ks, method.rows[i], dt))
        t = stage_time(c, ends, length) if times is None else times[i]
        ks.append(f(t, inputs[i], stage_nudge(c, nudge)))
    return ks, inputs, inputs[-1] if method.fsal else combine(y, ks, method.weights, dt)


def nonzero(row: np.ndarray) -> list[tuple[int, float]]:
    return [(j, float(w)) for j, w in enumerate(row) if w != 0.0]
