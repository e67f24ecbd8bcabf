"""How long the next step of each sample is and whether its last one is good enough.

The formulas are those of `AdaptiveControl`, on tensors with one number for each sample. Nothing here reads a number on
the host but the search for the first step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from quadjoint.solver.control import StepSettings
from quadjoint.solver.independent.samples import Samples
from quadjoint.solver.protocols import Step, VectorField


@dataclass(frozen=True)
class Verdict:
    """What the error of an attempt means for each sample; tensors of shape (B,)."""

    accepted: Tensor
    ended: Tensor  # at its last time; also samples that had ended before
    bad: Tensor  # the error is not finite
    stuck: Tensor  # the next step would be too short; also samples that had ended before


class SampleControl:
    """Accepts the step of a sample if its error is within tolerance, and chooses its next step size.

    A sample that has ended goes on with steps of length zero, which change nothing: its ``end`` is its time.
    """

    def __init__(self, settings: StepSettings, order: int, samples: Samples) -> None:
        self.settings, self.order, self.samples = settings, order, samples
        self.t, self.end = samples.times[:, 0], samples.times[:, -1]
        self.h = torch.zeros_like(self.t)  # signed
        self.eps = torch.finfo(self.t.dtype).eps
        self.remembers = not getattr(settings.controller, "memoryless", False)
        self.history = (torch.ones_like(self.t), torch.ones_like(self.t))
        self.limited = settings.min_step > 0.0 or settings.max_step < math.inf

    # The first step ---------------------------------------------------------------------------------------------------

    def start(self, f: VectorField, y0: Tensor) -> Tensor:
        """Choose the first step sizes; returns f(t0, y0)."""
        f0 = f(self.samples.start, y0)
        if self.settings.first_step is not None:
            self.h = self.samples.sign * abs(self.settings.first_step)
            return f0
        with torch.no_grad():
            self.h = self.samples.sign * self._search(f, y0.detach(), f0.detach())
        return f0

    def _search(self, f: VectorField, y0: Tensor, f0: Tensor) -> Tensor:
        """Hairer, Norsett and Wanner, section II.4: from the sizes of y, f and a difference of f."""
        span, shaped = (self.end - self.t).abs(), self.samples.shaped
        scale = y0.abs() * self.settings.rtol + self.settings.atol
        d0, d1 = self._norm(y0 / scale), self._norm(f0 / scale)
        h0 = torch.where((d0 < 1e-5) | (d1 < 1e-5), 1e-6, 0.01 * d0 / d1).minimum(span)
        dt = shaped(self.samples.sign * h0)
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
            size = self.h.abs().clamp(self.settings.min_step, self.settings.max_step)
            self.h = torch.copysign(size, self.samples.sign)
        beyond = (self.end - self.t) / self.h > 1.01  # not so for 0 / 0, samples that have ended
        return torch.where(beyond, self.t + self.h, self.end)

    def judge(self, step: Step, t1: Tensor) -> Verdict:
        """Which samples are accepted; the next step sizes of all."""
        s, dt = self.settings, t1 - self.t
        ratio = self._ratio(step, dt)
        accepted = ratio <= 1.0
        if s.min_step > 0.0:
            accepted = accepted | (dt.abs() <= s.min_step)
        factor = self._factor(ratio, accepted)
        self.h = dt * factor
        if self.remembers:
            self._remember(ratio, accepted)
        ended = accepted & (t1 == self.end)
        stuck = self.t + 0.1 * self.h == self.t
        return Verdict(accepted, ended, ratio == math.inf, stuck)

    def _ratio(self, step: Step, dt: Tensor) -> Tensor:
        """The errors in units of the tolerance; infinite if they are not finite."""
        with torch.no_grad():
            error = step.error
            assert error is not None
            scale = torch.maximum(step.y0.abs(), step.y1.abs()).mul_(self.settings.rtol).add_(self.settings.atol)
            return self._norm(error.div_(scale)).nan_to_num_(nan=math.inf)

    def _factor(self, ratio: Tensor, accepted: Tensor) -> Tensor:
        s = self.settings
        factor = s.controller.factor(ratio, self.history, order=self.order, safety=s.safety)
        factor = factor.clamp(s.dfactor, s.ifactor)
        # Another attempt must be shorter, whatever the steps before were like.
        return torch.where(accepted, factor, factor.clamp(max=s.safety)) if self.remembers else factor

    def _remember(self, ratio: Tensor, accepted: Tensor) -> None:
        last, before = self.history
        self.history = (
            torch.where(accepted, ratio.clamp(min=1e-4), last),
            torch.where(accepted, last, before),
        )

    def advance(self, t: Tensor) -> None:
        """Go on from the times ``t``."""
        self.t = t

    def halt(self, which: Tensor) -> None:
        """Let samples end where they are."""
        self.end = torch.where(which, self.t, self.end)
