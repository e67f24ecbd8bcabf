"""Where the event function of each sample changes sign first."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quadjoint.solver.dynamics import UNSTACKABLE, Dynamics
from quadjoint.solver.events import EventFunction
from quadjoint.solver.independent.samples import DOWN, UP, Samples
from quadjoint.solver.protocols import SampleStep

PARTS = 8  # of a step, at whose ends the signs are compared: two changes in one part are not seen
ITERATIONS = 100  # far more than bisection needs


@dataclass(frozen=True)
class Found:
    """The events within a step: of which samples, at which fraction of it, and when; all (B,)."""

    which: Tensor
    theta: Tensor
    t: Tensor


class SampleEvents:
    """Finds the first change of sign of each sample's event function, of any of its entries.

    An entry that is zero at the initial time has no sign until it leaves zero. ``times`` and ``index`` are the times of
    the events so far and the entries that changed sign, -1 if none has.
    """

    def __init__(self, event: EventFunction, f: Dynamics, samples: Samples, y0: Tensor, *, tolerance: float) -> None:
        self.event, self.f, self.samples, self.tolerance = event, f, samples, tolerance
        self.stackable = True
        self._check(y0)
        self.signs = torch.sign(self._values(samples.start, y0))
        self.times = samples.times[:, -1].clone()
        self.index = torch.full((len(samples),), -1, device=y0.device)
        self.found = torch.zeros(len(samples), dtype=torch.bool, device=y0.device)
        self.low = self.high = torch.empty(0)
        self.before = self.signs

    def _check(self, y0: Tensor) -> None:
        """Refuse values that are not one row for each sample."""
        batch = len(self.samples)
        with torch.enable_grad():
            t, y = (x.detach().requires_grad_() for x in (self.f.time(self.samples.start), y0))
            values = self.event(t, y)
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        if not isinstance(values, Tensor) or values.ndim not in (1, 2) or len(values) != batch:
            raise ValueError(
                f"With independent=True, event_fn returns a row for each sample, shape ({batch},) or ({batch}, E) for "
                f"E events; got {shape}."
            )
        if values.shape == (batch, batch) and batch > 1 and values.requires_grad:
            with torch.enable_grad():
                first = values[0].sum()
            found = torch.autograd.grad(first, (t, y), allow_unused=True)
            if any(bool(g[1:].any()) for g in found if g is not None):
                raise ValueError(
                    f"event_fn returned shape {shape}, in which the row of a sample depends on other samples. t has "
                    f"shape {tuple(t.shape)}: to compare it with y[:, 0] of shape ({batch},), write t[:, 0]."
                )

    def _values(self, t: Tensor, y: Tensor) -> Tensor:
        """The event function, shape (B, E)."""
        with torch.no_grad():
            return self.event(self.f.time(t), y.detach()).reshape(len(self.samples), -1)

    def _stack(self, t: Tensor, y: Tensor) -> Tensor:
        """The event function at a stack of times and states, shape (stack, B, E)."""
        if self.stackable:
            try:
                return torch.func.vmap(self._values)(t, y)
            except UNSTACKABLE:
                self.stackable = False
        return torch.stack([self._values(ti, yi) for ti, yi in zip(t, y, strict=True)])

    # Whether ----------------------------------------------------------------------------------------------------------

    def detect(self, step: SampleStep) -> Tensor:
        """Which samples have an event in a step, in which those that do not move are at rest."""
        assert step.clock is not None
        t0, t1 = step.clock
        theta = torch.arange(1, PARTS + 1, dtype=t0.dtype, device=t0.device) / PARTS
        times = t0 + theta.reshape(-1, *(1,) * t0.ndim) * (t1 - t0)
        states = torch.cat([step.spread(theta[:-1]), step.y1[None].detach()])
        signs = torch.cat([self.signs[None], torch.sign(self._stack(times, states)).to(self.signs)])
        last = self._last_signs(signs)
        changed = (last[:-1] * signs[1:] <= 0.0) & self._eligible(last[:-1]) & (t1 != t0).reshape(-1, 1)
        any_entry = changed.any(-1)  # (PARTS, B)
        self.found = any_entry.any(0)
        part = any_entry.int().argmax(0)
        self.low, self.high = part / PARTS, (part + 1) / PARTS
        self.before = last.gather(0, part[None, :, None].expand(1, *self.signs.shape))[0]
        self.signs = last[-1]
        return self.found

    def _last_signs(self, signs: Tensor) -> Tensor:
        """At every point the last sign that was not zero; zero if there was none."""
        place = torch.arange(len(signs), device=signs.device).reshape(-1, 1, 1)
        known = torch.where(signs.abs() == 1.0, place, 0).cummax(0).values
        return signs.gather(0, known)

    def _eligible(self, before: Tensor) -> Tensor:
        """Which signs may be followed by an event."""
        direction = self.samples.event_direction
        return before < 0.0 if direction == UP else before > 0.0 if direction == DOWN else before != 0.0

    # Where ------------------------------------------------------------------------------------------------------------

    def locate(self, step: SampleStep) -> Found:
        """The ends of brackets at which the events have happened, on the continuous extension of the step.

        Chandrupatla's method (1997), as in `EventWatch`, for all samples at once.
        """
        assert step.clock is not None
        t0, t1 = (x.reshape(-1) for x in step.clock)
        eps = torch.finfo(t0.dtype).eps
        resolution = (2 * eps * torch.maximum(t0.abs(), t1.abs()) / (t1 - t0).abs()).clamp(min=self.tolerance)
        a, b = torch.where(self.found, self.high, 1.0).to(t0), torch.where(self.found, self.low, 1.0).to(t0)
        # At the later end it has happened, also if other operations than those of ``detect`` round to the other side.
        value_a, value_b = self._before(step, a)[0].clamp(max=0.0), self._before(step, b)[0]
        c, value_c, fraction = b, value_b, torch.full_like(a, 0.5)
        for _ in range(ITERATIONS):
            open_ = self.found & ((b - a).abs() > resolution) & (value_a != 0.0)
            if not bool(open_.any()):
                break
            middle = torch.where(open_, a + fraction * (b - a), a)
            value = torch.where(open_, self._before(step, middle)[0], value_a)
            same = (value > 0.0) == (value_a > 0.0)
            c, value_c = torch.where(same, a, b), torch.where(same, value_a, value_b)
            b, value_b = torch.where(same, b, a), torch.where(same, value_b, value_a)
            a, value_a = middle, value
            limit = (0.5 * resolution / (b - a).abs()).clamp(max=0.5)
            fraction = torch.minimum(torch.maximum(_interpolated(a, b, c, value_a, value_b, value_c), limit), 1 - limit)
        theta = torch.where(value_a <= 0.0, a, b)
        return self._settle(step, theta, t0 + theta * (t1 - t0))

    def _before(self, step: SampleStep, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Positive before the event of a sample: the least of the entries that may have it, and which one that is."""
        assert step.clock is not None
        t0, t1 = step.clock
        every = torch.arange(len(theta), device=theta.device)
        with torch.no_grad():
            values = self._values(t0 + self.samples.shaped(theta) * (t1 - t0), step.scatter_at(every, theta))
        values = torch.where(self._eligible(self.before), values * self.before, torch.inf)
        least = values.min(1)
        return least.values.to(theta.dtype), least.indices

    def _settle(self, step: SampleStep, theta: Tensor, t: Tensor) -> Found:
        self.times = torch.where(self.found, t, self.times)
        self.index = torch.where(self.found, self._before(step, theta)[1], self.index)
        return Found(self.found, theta, t)


def _interpolated(a: Tensor, b: Tensor, c: Tensor, fa: Tensor, fb: Tensor, fc: Tensor) -> Tensor:
    """Where between a (0) and b (1) the next point lies: by inverse quadratic interpolation if that is safe."""
    xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
    safe = (phi * phi < xi) & ((1.0 - phi) ** 2 < 1.0 - xi)
    found = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
    return torch.where(safe & torch.isfinite(found), found, 0.5)
