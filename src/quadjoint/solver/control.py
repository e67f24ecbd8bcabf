"""How long the next step is and whether the last one is good enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from quadjoint.errors import NonFiniteStateError, StepSizeUnderflowError
from quadjoint.solver.controllers import CONTROLLERS
from quadjoint.solver.protocols import Clock, Controller, Step, VectorField
from quadjoint.solver.state import Norm, is_finite, relative_error, rms_norm, sizes

UNSOLVED = 0.5  # factor of the step size if the equations of implicit stages could not be solved


@dataclass(frozen=True)
class StepSettings:
    """Tolerances and limits of adaptive steps; the names are torchdiffeq's."""

    rtol: float | Tensor = 1e-3
    atol: float | Tensor = 1e-6
    norm: Norm = rms_norm
    first_step: float | None = None
    safety: float = 0.9
    ifactor: float = 10.0
    dfactor: float = 0.2
    min_step: float = 0.0
    max_step: float = math.inf
    max_num_steps: int = 100_000
    step_t: tuple[float, ...] = ()
    jump_t: tuple[float, ...] = ()
    controller: Controller = CONTROLLERS["i"]

    def first_nudge(self, t0: float, t_end: float) -> int:
        """On which side of the initial time f is evaluated first: past it, if f is discontinuous there."""
        return (1 if t_end > t0 else -1) if t0 in self.jump_t else 0

    def error_ratio(self, step: Step) -> float:
        """Size of the error estimate in units of the tolerance; the one host synchronisation of a step."""
        if step.ratio is not None:  # computed with the step
            return float(step.ratio)
        with torch.no_grad():
            error = step.error
            assert error is not None
            return sizes(self.norm, relative_error(error, step.y0, step.y1, rtol=self.rtol, atol=self.atol))[0]


class AdaptiveControl:
    """Accepts a step if its error is within tolerance, and chooses the next step size.

    The controller of the settings turns errors into factors; this one keeps the step size and the errors before.
    """

    perturb = False

    def __init__(self, settings: StepSettings, order: int) -> None:
        self.settings, self.order = settings, order
        self.h = 0.0  # always positive
        self.history = (1.0, 1.0)  # errors of the last two steps that were accepted
        self.before: float | None = None  # length of the last step that was accepted
        self.length = 0.0  # of the step in progress; t1 - t0 differs from it by rounding
        self.full_step = 0.0  # the step size wanted before a stop cut it short

    def start(self, f: VectorField, t0: float, y0: Tensor, t_end: float) -> Tensor | None:
        """Choose the first step size; returns f(t0, y0), the first stage, if the search evaluated it."""
        if self.settings.first_step is not None:
            self.h = abs(self.settings.first_step)
            return None
        f0 = f(t0, y0, self.settings.first_nudge(t0, t_end))
        with torch.no_grad():
            searched = self._search(f, t0, y0.detach(), f0.detach(), t_end)
        # If nothing moves, the search finds lengths that vanish beside a large time.
        self.h = max(searched, min(abs(t_end - t0), 100 * math.ulp(max(abs(t0), abs(t_end)))))
        return f0

    def _search(self, f: VectorField, t0: float, y0: Tensor, f0: Tensor, t_end: float) -> float:
        """Hairer, Norsett and Wanner, section II.4: from the sizes of y, f and a difference of f."""
        s = self.settings
        scale = y0.abs().mul_(s.rtol).add_(s.atol)
        d0, d1 = sizes(s.norm, y0 / scale, f0 / scale)
        if not (math.isfinite(d0) and math.isfinite(d1)):
            _refuse_start(t0, y0, f0, scale)
        h0 = 1e-6 if d0 < 1e-5 or d1 < 1e-5 else 0.01 * d0 / d1
        h0 = min(h0, abs(t_end - t0))
        dt = math.copysign(h0, t_end - t0)
        f1 = f(t0 + dt, torch.add(y0, f0, alpha=dt))
        d2 = sizes(s.norm, (f1 - f0) / scale)[0] / h0
        if not math.isfinite(d2):
            return h0
        h1 = max(1e-6, h0 * 1e-3) if d1 <= 1e-15 and d2 <= 1e-15 else (0.01 / max(d1, d2)) ** (1.0 / self.order)
        return min(100 * h0, h1)

    def propose(self, t: float, stop: float) -> tuple[float, Clock | None]:
        """End of the next step: at most at ``stop``, never leaving a sliver before it.

        Steps of a few units in the last place of t lead nowhere: towards a singularity they would go on for ever
        (Hairer, Norsett and Wanner stop at ten units as well).
        """
        h = min(max(self.h, self.settings.min_step), self.settings.max_step)
        remaining = abs(stop - t)
        self.full_step = self.length = h
        if remaining <= h * 1.01:
            self.length = remaining
            return stop, None
        t1 = t + math.copysign(h, stop - t)
        if h < 10 * math.ulp(t):  # a few units in the last place are lengths that cannot be controlled
            raise StepSizeUnderflowError(
                f"The step size fell to {h:.3g} at t = {t:.9g}, below the resolution of time. The problem may be stiff "
                "or discontinuous there, or its solution blow up: loosen rtol/atol, name discontinuities in "
                "options['jump_t'], or, for a stiff problem, use an implicit method (method='kvaerno5')."
            )
        return t1, None

    def judge(self, step: Step) -> bool:
        s = self.settings
        h = self.length
        shortest = min(h, self.full_step) <= s.min_step  # also if it was made a little longer to reach a stop
        ratio = s.error_ratio(step)
        if not math.isfinite(ratio):
            failed = isinstance(step.ratio, float)  # its equations could not be solved
            self._check_start(step, h, hopeless=shortest and not failed)
            if shortest:
                raise StepSizeUnderflowError(
                    f"The equations of an implicit step could not be solved at t = {step.t0:.9g}, and a step of length "
                    f"{h:.3g} must not be shortened: options['min_step'] = {s.min_step:.3g}. Lower it."
                )
            self.h = h * (max(UNSOLVED, s.dfactor) if failed else s.dfactor)
            return False
        accepted = ratio <= 1.0 or shortest
        factor = self._factor(ratio)
        # An implicit method saves a factorisation by a step of the same length.
        self.h = h if accepted and step.settled and 1.0 <= factor <= 1.2 else h * factor
        if accepted:
            # A stop that cut the step short says nothing about the size that the problem allows.
            if h < self.full_step:
                self.h = max(self.h, self.full_step)
            self.history = (max(ratio, 1e-4), self.history[0])
            self.before = h
        return accepted

    def _factor(self, ratio: float) -> float:
        s = self.settings
        if ratio == 0.0:
            return s.ifactor
        growth = 1.0 if self.before is None else self.length / self.before
        factor = s.controller.factor(ratio, self.history, order=self.order, safety=s.safety, growth=growth)
        # Another attempt must be shorter, whatever the steps before were like.
        return min(s.ifactor if ratio <= 1.0 else s.safety, max(factor, s.dfactor))

    def _check_start(self, step: Step, h: float, *, hopeless: bool) -> None:
        """A step from a state whose derivative is not finite cannot be mended by shortening it."""
        start_bad = step.slope is not None and not is_finite(step.slope)
        if hopeless or start_bad or not is_finite(step.y0) or h < 1e-13 * max(1.0, abs(step.t0)):
            raise NonFiniteStateError(
                f"The dynamics are not finite at t = {step.t0:.9g} (step size {h:.3g}). "
                "Look for a division by zero, a log or root of a negative number, or a solution that blows up there."
            )


def _refuse_start(t0: float, y0: Tensor, f0: Tensor, scale: Tensor) -> None:
    """Say why the sizes of y0 and f(t0, y0) in units of the tolerance are not finite."""
    if is_finite(y0) and is_finite(f0) and bool((scale == 0).any()):
        raise ValueError(
            "atol + rtol * |y0| is zero for some entries of y0, so that no error would be small enough there. Give "
            "atol > 0."
        )
    raise NonFiniteStateError(f"f(t, y0) is not finite at the initial time t = {t0:.6g}. Check y0 and f.")


class GridControl:
    """Takes the steps of a given grid, all of them good.

    ``points`` is the grid as a tensor, if gradients in it are wanted. Past the grid's end (an event is looked for)
    it goes on with the last step size. ``perturb`` evaluates just inside the ends of every step.
    """

    def __init__(
        self,
        grid: list[float],
        points: Tensor | None = None,
        *,
        perturb: bool = False,
        max_num_steps: int = 2**31 - 1,
    ) -> None:
        self.grid, self.points, self.perturb, self.index = grid, points, perturb, 0
        self.settings = StepSettings(max_num_steps=max_num_steps)

    def start(self, f: VectorField, t0: float, y0: Tensor, t_end: float) -> Tensor | None:
        return None

    def propose(self, t: float, stop: float) -> tuple[float, Clock | None]:
        if math.isfinite(stop) and stop != self.grid[-1] and self._passes(t, stop):
            return stop, None
        self.index += 1
        if self.index >= len(self.grid):
            return t + (self.grid[1] - self.grid[0]), None
        clock = None
        if self.points is not None:
            clock = (self.points[self.index - 1], self.points[self.index])
        return self.grid[self.index], clock

    def _passes(self, t: float, stop: float) -> bool:
        """Whether the next grid point lies on or past a stop between grid points, which is then landed on first."""
        slack = 1e-9 * (stop - t)  # grid points this close to the stop are taken for it
        direction = math.copysign(1.0, slack)
        while direction * (self.grid[self.index + 1] - t - slack) <= 0:
            self.index += 1
        beyond = direction * (self.grid[self.index + 1] - stop)
        if abs(beyond) <= abs(slack):
            self.index += 1
        return beyond >= -abs(slack)

    def judge(self, step: Step) -> bool:
        return True


class FreeControl(GridControl):
    """For solvers that choose their own steps: each is offered the whole way to the next stop."""

    def __init__(self, max_num_steps: int = 100_000) -> None:
        super().__init__([], max_num_steps=max_num_steps)

    def propose(self, t: float, stop: float) -> tuple[float, Clock | None]:
        return stop, None


Control = AdaptiveControl | GridControl
