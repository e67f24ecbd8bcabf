"""Gradients in times: a solution moves by f dt with the time at which it is looked at, or at which an event happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.autograd.captured import Snapshot
from quadjoint.autograd.gates import Gates
from quadjoint.autograd.leaves import Frontier
from quadjoint.solver.dynamics import Dynamics, stack_call
from quadjoint.solver.methods.explicit_stages import take_stages
from quadjoint.solver.methods.runge_kutta import RungeKutta
from quadjoint.solver.methods.tableaus import TABLEAUS
from quadjoint.solver.stats import Stats

_STEP = RungeKutta(TABLEAUS["rk4"])
CHUNK = 64  # states at which the flow is evaluated at once


class Flow:
    """f(t, y) at many states, in the user's own times, as it was when the solve ran.

    ``params`` are what f is differentiated in. At the states of ``failed`` samples f need not be finite, and NaN times
    zero would reach all that samples share. So it is evaluated at those of a sample that is fine, and the flow is zero.
    """

    def __init__(self, f: Dynamics, y: Tensor, snapshot: Snapshot, stats: Stats, params: tuple[Tensor, ...]) -> None:
        self.snapshot, self.stats, self.params, self.per_sample = snapshot, stats, params, f.per_sample
        self.plain = f.remapped(y, None)
        self.plain.shape = f.shape
        self.failed: Tensor | None = None  # shape (B,), once the solve has shown it

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        """The flow at states ``y`` of shape (*t.shape, *state), for times per sample (*t.shape, *sample)."""
        if self.failed is not None and bool(self.failed.all()):
            return torch.zeros_like(y)
        self.stats.backward_evaluations += t.shape[:1].numel() if t.ndim > int(self.per_sample) else 1
        with self.snapshot.reinstated():
            if not self.per_sample:
                return self._shared(t, y)
            rate = self._per_sample(*self.fine(t, y))
        return rate if self.failed is None else rate.masked_fill(_aligned(self.failed, t, y), 0.0)

    def fine(self, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Times and states, of shape (..., B) and (..., B, *sample), with those of failed samples replaced."""
        if self.failed is None or bool(self.failed.all()):
            return t, y
        fine, axis = (~self.failed).int().argmax().reshape(1), t.ndim - 1
        times, states = (x.detach().index_select(axis, fine) for x in (t, y))
        return torch.where(self.failed, times, t), torch.where(_aligned(self.failed, t, y), states, y)

    def _shared(self, t: Tensor, y: Tensor) -> Tensor:
        if t.ndim == 0:
            return self.plain(t, y)
        parts = zip(t.split(CHUNK), y.split(CHUNK), strict=True)
        return torch.cat([stack_call(self.plain, ti, yi, self.snapshot.modules) for ti, yi in parts])

    def _per_sample(self, t: Tensor, y: Tensor) -> Tensor:
        times = self.plain.time(t.reshape(*t.shape, *(1,) * (y.ndim - t.ndim)))
        if t.ndim == 1:
            return self.plain.checked(times, y)
        return torch.stack([self.plain.checked(ti, yi) for ti, yi in zip(times, y, strict=True)])

    def move(self, y: Tensor, begin: Tensor, end: Tensor) -> Tensor:
        """States moved from one time to another by a recorded Runge-Kutta step.

        If both times are equal, so are the states; the step has the derivatives of the movement up to order four.
        """
        length = end - begin
        dt = length.reshape(*begin.shape, *(1,) * (y.ndim - begin.ndim)).to(y.dtype.to_real())
        f = lambda t, y, nudge=0: self(t, y)  # noqa: E731
        return take_stages(_STEP, f, (begin, end), y, self(begin, y), dt=dt, length=length).y1


def _aligned(samples: Tensor, t: Tensor, y: Tensor) -> Tensor:
    """A number for each sample, shaped to broadcast against states ``y`` at times ``t``."""
    return samples.reshape(-1, *(1,) * (y.ndim - t.ndim))


class _Shift(torch.autograd.Function):
    """The identity on states at given times whose gradient in the times is sign * <dL/dy, f(t, y)>.

    A solution moves by f dt with its observation time, and by -f dt at the start with its initial time.
    """

    @staticmethod
    def forward(ctx: Any, flow: Flow, sign: float, y: Tensor, t: Tensor, *params: Tensor) -> Tensor:
        ctx.flow, ctx.sign = flow, sign
        ctx.save_for_backward(y, t, *params)
        return y.view_as(y)

    @staticmethod
    @private.outside_of_compile
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (g,) = grads
        y, t, *params = ctx.saved_tensors
        if torch.is_grad_enabled():
            gates = Gates()
            y, t = gates(y), gates(t)
            begin, end = (t.detach(), t) if ctx.sign > 0 else (t, t.detach())
            with ctx.flow.snapshot.reinstated():
                return None, None, *gates.gradients([ctx.flow.move(y, begin, end)], [y, t, *params], [g])
        rate = ctx.flow(t.detach(), y.detach())
        inner = _dot(g, rate).reshape(*t.shape, -1).sum(-1)
        return None, None, g, ctx.sign * inner.to(t), *(None for _ in params)


def shift(flow: Flow, y: Tensor, t: Tensor, *, sign: float = 1.0) -> Tensor:
    """Make ``y``, states at the times ``t`` (the leading dimensions of y), differentiable in ``t``.

    Second derivatives in a time and in a parameter need the parameters of f, which are inputs for that reason.
    Transforms of torch.func differentiate the movement itself.
    """
    if private.is_transformed():
        begin, end = (t.detach(), t) if sign > 0 else (t, t.detach())
        return flow.move(y, begin, end)
    return _Shift.apply(flow, sign, y, t, *flow.params)


class _EventTime(torch.autograd.Function):
    """The time of an event as a function of the state found there (implicit function theorem).

    With g(t, y) zero at the event and dg/dt its rate along the solution, dt = -dg / (dg/dt). To differentiate again,
    two recorded steps of Newton's method are taken from the event: each doubles the order of the derivatives that are
    right.
    """

    @staticmethod
    def forward(ctx: Any, crossing: Crossing, t: Tensor, y: Tensor, *params: Tensor) -> Tensor:
        ctx.crossing = crossing
        ctx.save_for_backward(t, y, *params)
        return t.clone()

    @staticmethod
    @private.outside_of_compile
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        crossing: Crossing = ctx.crossing
        with crossing.flow.snapshot.reinstated():
            return None, None, *crossing.gradients(grads[0], *ctx.saved_tensors)


class Crossing:
    """Events at which a solve ended: one, or one of each sample, if it ``happened``.

    ``value`` is the event function that changed its sign as a function of the time, a number or one for each sample,
    and the state.
    """

    def __init__(
        self,
        value: Callable[[Tensor, Tensor], Tensor],
        flow: Flow,
        *,
        happened: Tensor | None = None,
    ) -> None:
        self.value, self.flow = value, flow
        self.happened = torch.ones((), dtype=torch.bool) if happened is None else happened
        self.slope = torch.ones(())

    def rate(self, t: Tensor, y: Tensor) -> Tensor:
        """How fast the event function changes along the solution, differentiable in t and y."""
        if private.is_transformed():
            here_t, here_y = torch.func.grad(self.value, argnums=(0, 1))(t, y)
            return here_t + _dot(here_y, self.flow(t, y)).sum()
        gates = Gates()  # y may depend on t; the partial derivatives are wanted
        with torch.enable_grad():
            here = t if t.requires_grad else t.detach().requires_grad_()
            state = gates(y if y.requires_grad else y.detach().requires_grad_())
            value = self.value(here, state)
            if not value.requires_grad:
                return torch.zeros_like(value)
            in_t, in_y = gates.gradients([value], [here, state], [torch.ones_like(value)])
            rate = torch.zeros_like(value) if in_t is None else in_t
            return rate if in_y is None else rate + _dot(in_y, self.flow(here, state)).reshape(*t.shape, -1).sum(-1)

    def gradients(self, g: Tensor, t: Tensor, y: Tensor, *params: Tensor) -> list[Tensor | None]:
        """The gradients in the state and the parameters, from that in the time of the event."""
        gates = Gates()
        state = gates(y)
        if torch.is_grad_enabled():
            return gates.gradients([self.newton(t, state)], [state, *params], [g])
        with torch.enable_grad():
            state = y.detach().requires_grad_()
            value = self.value(t, state)
        seed = torch.where(self.happened, -g / self.slope, 0.0)
        inputs = [state, *params]
        return list(torch.autograd.grad(value, inputs, seed.to(value), allow_unused=True, retain_graph=True))

    def newton(self, t: Tensor, y: Tensor) -> Tensor:
        """Two steps of Newton's method for the time at which the solution through ``y`` at ``t`` has its event."""
        begin = now = t.detach()
        for _ in range(2):
            state = self.flow.move(y, begin, now)
            rate = torch.where(self.happened, self.rate(now, state), 1.0)
            now = now - torch.where(self.happened, self.value(now, state), 0.0) / rate
        return now

    def time(self, t: Tensor, y: Tensor) -> Tensor:
        """The time ``t`` of the event, differentiable in whatever it depends on."""
        if private.is_transformed():
            return self._transformed_time(t, y)
        if not torch.is_grad_enabled():
            return t
        with torch.enable_grad():
            state = y.detach().requires_grad_()
            value = self.value(t, state)
            _, own = Frontier([state, *self.flow.params]).explore(value)
        if not value.requires_grad or not (y.requires_grad or own):
            return t
        self.slope = self._checked_slope(t, y)
        return _EventTime.apply(self, t, y, *self.flow.params, *own)

    def _transformed_time(self, t: Tensor, y: Tensor) -> Tensor:
        if not private.is_differentiated(self.value(t, y)):
            return t
        self._checked_slope(t, y)
        now = self.newton(t, y)
        return t + (now - now.detach())  # the derivatives alone

    def _checked_slope(self, t: Tensor, y: Tensor) -> Tensor:
        slope = self.rate(t, y.detach()).detach()
        self.happened = self.happened.to(slope.device)
        flat = self.happened & ((slope == 0.0) | ~torch.isfinite(slope))
        if bool(flat.any()):
            which = f" of samples {flat.nonzero().flatten().tolist()}" if flat.ndim else ""
            raise ZeroDivisionError(
                f"The event function{which} is stationary along the solution at the event; its time has no gradient."
            )
        return torch.where(self.happened, slope, 1.0)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """The real inner products whose sum is a change of the loss."""
    return (a.conj() * b).real if a.is_complex() else a * b
