"""Observation times: checks, and times of each sample's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.autograd import private
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
    values = _on_the_host(t, name)
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
            where = f"{name}[{b}]" if t.ndim == 2 else name
            raise ValueError(f"{where} must be strictly increasing or strictly decreasing; got {_short(kept)}.")
    return values


def _on_the_host(t: Tensor, name: str) -> np.ndarray:
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


def _short(values: np.ndarray) -> str:
    shown = ", ".join(f"{v:.6g}" for v in values[:6])
    return f"[{shown}{', ...' if len(values) > 6 else ''}]"


def fill_padding(t: Tensor) -> Tensor:
    """Replace NaN at the ends of rows by the row's last time, so that padded outputs repeat the last state."""
    last = (~torch.isnan(t)).sum(dim=1, keepdim=True) - 1
    return torch.where(torch.isnan(t), t.gather(1, last), t)


def sample_options(method: Method, options: dict[str, Any], t: Tensor) -> dict[str, Any]:
    """Options of a solve in the batch's common time, from those given in each sample's own."""
    if runge_kutta_of(method) is None:
        raise ValueError(f"Times per sample need a Runge-Kutta method; got method={method!r}.")
    for name in ("grid_constructor", "step_t", "jump_t"):
        if options.get(name) is not None:
            raise ValueError(f"options[{name!r}] names times, which with times per sample differ between the samples.")
    out = dict(options)
    # Lengths in time become lengths in the common time, by the longest interval that it stands for.
    longest = float(t.detach()[:, [0, -1]].double().diff(dim=1).abs().max())
    for name in ("first_step", "min_step", "max_step", "step_size"):
        if options.get(name) is not None:
            out[name] = float(options[name]) / longest
    return out


def fractions(values: np.ndarray) -> np.ndarray:
    """Where each sample's times lie between its first and its last, shape (B, K), padding at one."""
    filled = values.copy()
    for row in filled:
        row[np.isnan(row)] = row[~np.isnan(row)][-1]
    length = filled[:, -1:] - filled[:, :1]
    return np.clip((filled - filled[:, :1]) / np.where(length == 0, 1.0, length), 0.0, 1.0)
