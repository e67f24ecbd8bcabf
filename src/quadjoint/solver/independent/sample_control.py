"""How long the next step of each sample is and whether its last one is good enough.

The formulas are those of `AdaptiveControl`, on tensors with one number for each sample. Nothing here reads a number on
the host but the search for the first step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from quadjoint.solver.control import UNSOLVED, StepSettings
from quadjoint.solver.independent.samples import Samples
from quadjoint.solver.protocols import SampleStep, VectorField
from quadjoint.solver.state import relative_error


@dataclass(frozen=True)
class Verdict:
    """What the error of an attempt means for each sample; tensors of shape (B,)."""

    accepted: Tensor
    ended: Tensor  # at its last time; also samples that had ended before
    ratio: Tensor  # of the error and the tolerance, infinite if it is not finite
    lost: Tensor | None  # implicit stages were not found
    stuck: Tensor  # the next step may be too short; also samples that had ended before
    hopeless: Tensor | None  # the shortest step that is allowed has failed

    @property
    def infinite(self) -> Tensor:
        return self.ratio == math.inf

    @property
    def unusable(self) -> Tensor:
        """Samples whose attempt must not be differentiated, not even with a gradient of zero."""
        return self.infinite if self.lost is None else self.infinite | self.lost


class SampleControl:
    """Accepts the step of a sample if its error is within tolerance, and chooses its next step size.

    The clocks ``t`` of all samples run forwards. A sample that has ended goes on with steps of length zero, which
    change nothing: its ``end`` is its time.
    """

    def __init__(self, settings: StepSettings, order: int, samples: Samples) -> None:
        self.settings, self.order, self.samples = settings, order, samples
        self.t, self.end = (samples.forwards(t) for t in (samples.times[:, 0], samples.times[:, -1]))
        self.h = torch.zeros_like(self.t)
        self.beyond = torch.zeros_like(self.t, dtype=torch.bool)  # samples whose step does not reach the end
        self.eps = torch.finfo(self.t.dtype).eps
        self.remembers = not settings.controller.memoryless
        self.history = (torch.ones_like(self.t), torch.ones_like(self.t))  # errors of the last two accepted steps
        self.before = torch.zeros_like(self.t)  # length of the last one
        # Steps this short have come to nothing, if they are not those of a sample that has ended.
        size = torch.maximum(self.t.abs(), self.end.abs())
        self.least = torch.maximum(1e-13 * size.clamp(min=1.0), 10 * self.eps * size)
        self.resting = False  # whether samples have ended, whose steps are accepted whatever they are
        self.limited = settings.min_step > 0.0 or settings.max_step < math.inf

    # The first step ---------------------------------------------------------------------------------------------------

    def start(self, f: VectorField, y0: Tensor) -> Tensor:
        """Choose the first step sizes; returns f(t0, y0)."""
        f0 = f(self.samples.start, y0)
        if self.settings.first_step is not None:
            self.h = torch.full_like(self.t, abs(self.settings.first_step))
            return f0
        with torch.no_grad():
            self.h = self._search(f, y0.detach(), f0.detach())
        return f0

    def _search(self, f: VectorField, y0: Tensor, f0: Tensor) -> Tensor:
        """Hairer, Norsett and Wanner, section II.4: from the sizes of y, f and a difference of f."""
        span, shaped = self.end - self.t, self.samples.shaped
        scale = y0.abs() * self.settings.rtol + self.settings.atol
        d0, d1 = self._norm(y0 / scale), self._norm(f0 / scale)
        h0 = torch.where((d0 < 1e-5) | (d1 < 1e-5), 1e-6, 0.01 * d0 / d1).minimum(span)
        dt = shaped(self.samples.forwards(h0))
        f1 = f(self.samples.start + dt, y0 + dt.to(scale.dtype) * f0)
        d2 = self._norm((f1 - f0) / scale) / h0
        still = (d1 <= 1e-15) & (d2 <= 1e-15)
        h1 = torch.where(still, (1e-3 * h0).clamp(min=1e-6), (0.01 / torch.maximum(d1, d2)) ** (1.0 / self.order))
        found = torch.where(torch.isfinite(d2), torch.minimum(100 * h0, h1), h0)
        # Where nothing moves, the search finds lengths that vanish beside a large time.
        least = 100 * self.eps * torch.maximum(self.t.abs(), self.end.abs())
        return torch.maximum(found, torch.minimum(span, least))

    def _norm(self, x: Tensor) -> Tensor:
        return self.settings.norm(x).to(self.t.dtype)

    # Every step -------------------------------------------------------------------------------------------------------

    def propose(self) -> Tensor:
        """The ends of the next steps: at most the last times, never leaving a sliver before them."""
        if self.limited:
            self.h = self.h.clamp(self.settings.min_step, self.settings.max_step)
        self.beyond = torch.add(self.t, self.h, alpha=1.01) < self.end
        return torch.where(self.beyond, self.t + self.h, self.end)

    def judge(self, step: SampleStep, t1: Tensor) -> Verdict:
        """Which samples are accepted; the next step sizes of all."""
        dt, ratio = t1 - self.t, self._ratio(step)
        accepted = ratio <= 1.0
        if self.resting:
            accepted = accepted | (dt <= 0.0)
        shortest = None
        if self.settings.min_step > 0.0:
            # Rounding, or the end of the solve, may make the step a little longer than it was to be.
            shortest = torch.minimum(self.h, dt) <= self.settings.min_step
            accepted = accepted | (shortest & (ratio < math.inf))
        factor, lost = self._factor(ratio, accepted, dt), step.lost
        if lost is not None:
            lost = lost & (dt > 0.0)
            accepted, factor = accepted & ~lost, torch.where(lost, max(UNSOLVED, self.settings.dfactor), factor)
        hopeless = None if shortest is None else shortest & ~accepted
        self.h = dt * factor
        if self.remembers:
            self._remember(ratio, accepted, dt)
        stuck = self.h <= self.least
        stuck = stuck if hopeless is None else stuck | hopeless
        return Verdict(accepted, accepted > self.beyond, ratio, lost, stuck, hopeless)

    def _ratio(self, step: SampleStep) -> Tensor:
        """The errors in units of the tolerance; infinite if they are not finite."""
        with torch.no_grad():
            error = step.error
            assert error is not None
            relative = relative_error(error, step.y0, step.y1, rtol=self.settings.rtol, atol=self.settings.atol)
            return self.settings.norm(relative).nan_to_num_(nan=math.inf, posinf=math.inf)

    def _factor(self, ratio: Tensor, accepted: Tensor, dt: Tensor) -> Tensor:
        s = self.settings
        growth: Tensor | float = torch.where(self.before > 0.0, dt / self.before, 1.0) if self.remembers else 1.0
        factor = s.controller.factor(ratio, self.history, order=self.order, safety=s.safety, growth=growth)
        factor = factor.clamp(s.dfactor, s.ifactor)
        # Another attempt must be shorter, whatever the steps before were like.
        return torch.where(accepted, factor, factor.clamp(max=s.safety)) if self.remembers else factor

    def _remember(self, ratio: Tensor, accepted: Tensor, dt: Tensor) -> None:
        last, before = self.history
        self.history = (
            torch.where(accepted, ratio.clamp(min=1e-4), last),
            torch.where(accepted, last, before),
        )
        self.before = torch.where(accepted, dt, self.before)

    @property
    def time(self) -> Tensor:
        """The time of each sample."""
        return self.samples.forwards(self.t)

    def halt(self, which: Tensor) -> None:
        """Let samples end where they are."""
        self.resting = True
        self.end = torch.where(which, self.t, self.end)
