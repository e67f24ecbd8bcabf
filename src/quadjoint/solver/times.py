"""Observation times: checks, and times of each sample's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.solver.clocks import Clocks, LinearMap, PiecewiseMap, on_the_host
from quadjoint.solver.methods.catalogue import runge_kutta_of
from quadjoint.solver.spec import Method


def check_times(t: Tensor, name: str = "t") -> np.ndarray:
    """The times on the host in float64, refused in words if they cannot be solved for. NaN pads rows of (B, K)."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} must be a tensor of times; got {type(t).__name__}. Use torch.as_tensor({name}).")
    if not t.is_floating_point():
        raise TypeError(f"{name} must be floating point; got {t.dtype}. Use {name}.to(torch.float64).")
    if t.ndim not in (1, 2) or t.shape[-1] == 0:
        raise ValueError(f"{name} must have shape (K,) or, with times per sample, (B, K); got {tuple(t.shape)}.")
    values = on_the_host(t, name)
    if _are_fine(values):
        return values
    if t.ndim == 1 and not np.isfinite(values).all():
        raise ValueError(
            f"{name} must be finite; entry {int(np.argmin(np.isfinite(values)))} is {values[~np.isfinite(values)][0]}."
        )
    if t.ndim == 2 and (np.isinf(values).any() or np.isnan(values[:, 0]).any()):
        raise ValueError(
            f"{name} must be finite, or NaN for padding at the end of a row; the first column has no padding."
        )
    rows = values if t.ndim == 2 else values[None]
    for b, row in enumerate(rows):
        kept = row[~np.isnan(row)]
        if np.isnan(row[: len(kept)]).any():
            raise ValueError(f"{name}[{b}] has NaN between times; padding must come last.")
        steps = np.diff(kept)
        if not ((steps > 0).all() or (steps < 0).all()):
            place = f"{name}[{b}]" if t.ndim == 2 else name
            raise ValueError(f"{place} must be strictly increasing or strictly decreasing; got {_short(kept)}.")
    return values


def _are_fine(values: np.ndarray) -> bool:
    """Whether times, or every row of them, are finite and strictly monotone; a row with padding is not looked at."""
    if values.shape[-1] == 1:
        return bool(np.isfinite(values).all())
    steps = values[..., 1:] - values[..., :-1]
    least, most = steps.min(-1), steps.max(-1)  # NaN if any is, which is neither positive nor negative
    monotone = (least > 0) | (most < 0)
    return bool(monotone.all()) and bool(np.isfinite(values[..., 0] + values[..., -1]).all())


def _short(values: np.ndarray) -> str:
    shown = ", ".join(f"{v:.6g}" for v in values[:6])
    return f"[{shown}{', ...' if len(values) > 6 else ''}]"


def fill_padding(t: Tensor) -> Tensor:
    """Replace NaN at the ends of rows by the row's last time, so that padded outputs repeat the last state."""
    last = (~torch.isnan(t)).sum(dim=1, keepdim=True) - 1
    return torch.where(torch.isnan(t), t.gather(1, last), t)


def common_clock(method: Method, options: dict[str, Any], t: Tensor, y: Tensor) -> tuple[Clocks, dict[str, Any]]:
    """The time that all samples of a batch share in a solve, and the options in it, from those in their own times.

    Where f of each sample has discontinuities, options["jump_t"], the k-th of every sample is at k. So are the times of
    each sample if steps lead from one to the next, which fixed ones do unless options["step_size"] says otherwise.
    """
    stepper = runge_kutta_of(method)
    if stepper is None:
        raise ValueError(f"Times per sample need a Runge-Kutta method; got method={method!r}.")
    for name in ("grid_constructor", "step_t"):
        if options.get(name) is not None:
            raise ValueError(f"options[{name!r}] names times, which with times per sample differ between the samples.")
    out = dict(options)
    to_times = not stepper.adaptive and options.get("step_size") is None
    table = _breakpoints(t, out.pop("jump_t", None), to_times=to_times)
    longest = table.diff(dim=1).abs().amax(dim=0)  # that a unit of the common time, or a piece of it, stands for
    unit = float(longest.max()) or 1.0  # if no sample has more than one time, there is nothing to step over
    for name in ("first_step", "min_step", "max_step"):
        if options.get(name) is not None:
            out[name] = float(options[name]) / unit
    if table.shape[1] == 2:
        if options.get("step_size") is not None:
            out["step_size"] = float(options["step_size"]) / unit
        return LinearMap(t, y), out
    out["jump_t"] = [float(k) for k in range(1, len(longest))]
    if out.pop("step_size", None) is not None:
        grid = _grid_of_pieces(longest, float(options["step_size"]))
        out["grid_constructor"] = lambda f, y0, t: grid
    return PiecewiseMap(table, y), out


def _breakpoints(t: Tensor, jump_t: Any, *, to_times: bool) -> Tensor:
    """Start, discontinuities inside and end of each sample's solve, shape (B, K); shorter rows repeat their end.

    With ``to_times`` the times between are breakpoints as well.
    """
    times = t.detach().to("cpu", torch.float64)
    start, end = times[:, :1], times[:, -1:]
    jumps = torch.as_tensor(() if jump_t is None else jump_t, dtype=torch.float64).detach().cpu()
    if jumps.ndim > 2 or (jumps.ndim == 2 and len(jumps) != len(times)):
        raise ValueError(
            f"options['jump_t'] must have shape (J,), or (B, J) for a batch of B = {len(times)} samples with times of "
            f"their own; got {tuple(jumps.shape)}."
        )
    jumps = jumps if jumps.ndim == 2 else jumps.reshape(1, jumps.numel()).expand(len(times), -1)
    if to_times:
        jumps = torch.cat([jumps, times[:, 1:-1]], dim=1)
    sign = torch.where(end >= start, 1.0, -1.0)
    inside = (sign * jumps > sign * start) & (sign * jumps < sign * end)  # NaN, which pads rows, is not inside
    ordered = torch.where(inside, sign * jumps, sign * end).sort(dim=1).values
    again = ordered.diff(dim=1, prepend=sign * start) == 0  # no pieces without a length, but at the ends of rows
    ordered = torch.where(again, sign * end, ordered).sort(dim=1).values
    most = int((ordered != sign * end).sum(dim=1).max())
    return torch.cat([start, sign * ordered[:, :most], end], dim=1)


def _grid_of_pieces(longest: Tensor, step_size: float) -> Tensor:
    """Fixed steps on the common clock that are no longer than ``step_size`` for any sample."""
    if not step_size > 0:
        raise ValueError(f"options['step_size'] must be positive; got {step_size}.")
    points = [
        np.linspace(k, k + 1.0, max(1, math.ceil(length / step_size - 1e-9)) + 1)[:-1]
        for k, length in enumerate(longest.tolist())
    ]
    return torch.as_tensor(np.concatenate([*points, [float(len(longest))]]))
