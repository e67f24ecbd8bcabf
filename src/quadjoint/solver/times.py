"""Observation times: checks, times of each sample's own, and gradients in the times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.autograd.captured import Gates, as_captured, capture
from quadjoint.solver.dynamics import Dynamics, stack_call
from quadjoint.solver.methods.catalogue import RUNGE_KUTTA


def check_times(t: Tensor, name: str = "t") -> np.ndarray:
    """The times on the host in float64, refused in words if they cannot be solved for. NaN pads rows of (B, K)."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} must be a tensor of times; got {type(t).__name__}. Use torch.as_tensor({name}).")
    if not t.is_floating_point():
        raise TypeError(f"{name} must be floating point; got {t.dtype}. Use {name}.to(torch.float64).")
    if t.ndim not in (1, 2) or t.shape[-1] == 0:
        raise ValueError(f"{name} must have shape (K,) or, with times per sample, (B, K); got {tuple(t.shape)}.")
    values = t.detach().to("cpu", torch.float64).numpy()
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


def _short(values: np.ndarray) -> str:
    shown = ", ".join(f"{v:.6g}" for v in values[:6])
    return f"[{shown}{', ...' if len(values) > 6 else ''}]"


def fill_padding(t: Tensor) -> Tensor:
    """Replace NaN at the ends of rows by the row's last time, so that padded outputs repeat the last state."""
    last = (~torch.isnan(t)).sum(dim=1, keepdim=True) - 1
    return torch.where(torch.isnan(t), t.gather(1, last), t)


class LinearMap:
    """s in [0, 1] to each sample's time from its first to its last: one smooth solve for the whole batch."""

    def __init__(self, t: Tensor, y: Tensor) -> None:
        shape = (-1, *(1,) * (y.ndim - 1))
        ends = t.detach()[:, [0, -1]].to(y.device, y.dtype.to_real())
        self.start = ends[:, 0].reshape(shape)
        self.length = (ends[:, 1] - ends[:, 0]).reshape(shape)

    def __call__(self, s: Tensor) -> tuple[Tensor, Tensor]:
        return self.start + s * self.length, self.length


class PiecewiseMap:
    """s in [k, k + 1] to each sample's time between its observations k and k + 1: all samples observe at once."""

    def __init__(self, t: Tensor, y: Tensor) -> None:
        self.shape = (-1, *(1,) * (y.ndim - 1))
        self.table = t.detach().to(y.device, y.dtype.to_real()).T.contiguous()  # (K, B)

    def __call__(self, s: Tensor) -> tuple[Tensor, Tensor]:
        k = s.detach().floor().clamp(0, self.table.shape[0] - 2).long()
        start, rate = self.table[k], self.table[k + 1] - self.table[k]
        return (start + (s - k) * rate).reshape(self.shape), rate.reshape(self.shape)


def sample_options(method: str, options: dict[str, Any], t: Tensor, how: str) -> dict[str, Any]:
    """Options of a solve in the batch's common time, from those given in each sample's own."""
    if method not in RUNGE_KUTTA:
        raise ValueError(f"Times per sample need a Runge-Kutta method; got method={method!r}.")
    for name in ("grid_constructor", "step_t", "jump_t"):
        if options.get(name) is not None:
            raise ValueError(f"options[{name!r}] names times, which with times per sample differ between the samples.")
    out = dict(options)
    # Lengths in time become lengths in the common time, by the longest stretch that it stands for.
    stretches = t.detach()[:, [0, -1]] if how == "interpolate" else t.detach()
    longest = float(stretches.diff(dim=1).abs().max())
    for name in ("first_step", "min_step", "max_step", "step_size"):
        if options.get(name) is not None:
            out[name] = float(options[name]) / longest
    if how == "interpolate":
        return out
    if not RUNGE_KUTTA[method].adaptive:
        out["perturb"] = True  # the samples' clocks change their rates at every observation
        if out.get("step_size") is not None:
            out["step_size"] = 1.0 / math.ceil(1.0 / out["step_size"] - 1e-9)
    else:
        out["jump_t"] = torch.arange(1, t.shape[1] - 1, dtype=torch.float64)
    return out


def fractions(values: np.ndarray) -> np.ndarray:
    """Where each sample's times lie between its first and its last, shape (B, K), padding at one."""
    filled = values.copy()
    for row in filled:
        row[np.isnan(row)] = row[~np.isnan(row)][-1]
    length = filled[:, -1:] - filled[:, :1]
    return np.clip((filled - filled[:, :1]) / np.where(length == 0, 1.0, length), 0.0, 1.0)


class _Shift(torch.autograd.Function):
    """The identity on states at given times whose gradient in the times is sign * <dL/dy, f(t, y)>.

    A solution moves by f dt with its observation time, and by -f dt at the start with its initial time.
    """

    @staticmethod
    def forward(ctx: Any, rate: Any, sign: float, y: Tensor, t: Tensor, *params: Tensor) -> Tensor:
        ctx.rate, ctx.sign = rate, sign
        ctx.save_for_backward(y, t, *params)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (g,) = grads
        y, t, *params = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, None, *_differentiable_shift(ctx.rate, ctx.sign, y, t, params, g)
        flow = ctx.rate(t.detach(), y.detach())
        product = (g.conj() * flow).real if g.is_complex() else g * flow
        inner = product.reshape(*t.shape, -1).sum(-1)
        return None, None, g, ctx.sign * inner.to(t), *(None for _ in params)


def _differentiable_shift(rate: Any, sign: float, y: Tensor, t: Tensor, params: list[Tensor],
                          g: Tensor) -> list[Tensor | None]:  # fmt: skip
    """The gradient of a shift that can be differentiated again.

    A solution moves along the flow; a recorded Runge-Kutta step of length zero has the derivatives of that movement
    up to order four.
    """
    gates = Gates()
    y, t = gates(y), gates(t)
    begin, end = (t.detach(), t) if sign > 0 else (t, t.detach())
    h = (end - begin).reshape(*t.shape, *(1,) * (y.ndim - t.ndim)).to(y.dtype.to_real())
    middle = 0.5 * (begin + end)
    k1 = rate(begin, y)
    k2 = rate(middle, y + 0.5 * h * k1)
    k3 = rate(middle, y + 0.5 * h * k2)
    k4 = rate(end, y + h * k3)
    return gates.gradients(y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), [y, t, *params], g)


def shift(f: Dynamics, y: Tensor, t: Tensor, sign: float = 1.0, params: Sequence[Tensor] = ()) -> Tensor:
    """Make ``y``, states at the times ``t`` (the leading dimensions of y), differentiable in ``t``.

    Second derivatives in a time and in a parameter need the parameters of f among the inputs.
    """
    plain = Dynamics(f.f, y[0] if y.ndim > t.ndim else y, f.layout)
    plain.shape, plain.needs_grad, plain.stackable = f.shape, f.needs_grad, f.stackable
    tensors = capture(f.f)  # functional_call may have put others back when the backward pass runs

    def rate(t: Tensor, y: Tensor) -> Tensor:
        with as_captured(plain, tensors):
            return flow(t, y)

    def flow(t: Tensor, y: Tensor) -> Tensor:
        if f.time_map is not None:  # times of shape (B,), or (K, B): a stack of evaluations with times per sample
            times = plain.time(t.reshape(*t.shape, *(1,) * (y.ndim - t.ndim)))
            if t.ndim == 1:
                return plain.checked(times, y)
            return torch.stack([plain.checked(ti, yi) for ti, yi in zip(times, y, strict=True)])
        if t.ndim == 0:
            return plain(t, y)
        return stack_call(plain, t, y) if len(y) <= 64 else torch.cat(
            [stack_call(plain, ti, yi) for ti, yi in zip(t.split(64), y.split(64), strict=True)]
        )  # fmt: skip

    return _Shift.apply(rate, sign, y, t, *params)


def event_time(f: Dynamics, event: Any, signs: Tensor, t: float, y: Tensor, like: Tensor) -> Tensor:
    """The time of an event as a function of the state found there (implicit function theorem)."""
    here = torch.full((), t, dtype=f.time_dtype, device=y.device, requires_grad=True)
    if not (torch.is_grad_enabled() and y.requires_grad):
        return here.detach().to(like)
    with torch.enable_grad():
        state = y.detach().requires_grad_()
        value = (event(here, state) * signs).min()
        in_t, in_y = torch.autograd.grad(value, (here, state), allow_unused=True)
    with torch.no_grad():
        flow = f(t, y.detach())
        slope = 0.0 if in_t is None else float(in_t)
        if in_y is not None:
            slope += float((in_y.conj() * flow).real.sum() if flow.is_complex() else (in_y * flow).sum())
    if slope == 0.0 or not math.isfinite(slope):
        raise ZeroDivisionError(
            "The event function is stationary along the solution at the event; its time has no gradient."
        )
    moved = (event(here.detach(), y) * signs).min()
    return (here.detach() - (moved - moved.detach()) / slope).to(like)
