"""The asynchronous leapfrog method run backwards by its exact inverse: memory that does not grow with the steps."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quadjoint.errors import QuadjointWarning
from quadjoint.gradient.base import Gradient, Gradients
from quadjoint.gradient.products import Products
from quadjoint.solver.problem import Problem
from quadjoint.solver.state import rms_norm


@dataclass(frozen=True)
class Reversible(Gradient):
    """MALI (Zhuang et al. 2021), with ``method="alf"``: states are reconstructed, not stored; the gradient is exact.

    Steps end on the observations, so that only the final (z, v) and the step sizes are kept.

    >>> import torch, quadjoint as qj
    >>> w = torch.tensor(0.5, requires_grad=True)
    >>> t = torch.tensor([0.0, 1.0])
    >>> ys = qj.odeint(lambda t, y: -w * y, torch.ones(1), t, gradient=qj.Reversible(), method="alf")
    >>> ys[-1].sum().backward()
    >>> round(w.grad.item(), 2)  # -exp(-w)
    -0.61
    """

    name = "reversible"

    def apply(self, problem: Problem, y0: Tensor) -> Tensor:
        if problem.solver.method != "alf":
            raise ValueError(
                "gradient='reversible' needs method='alf', the one with an inverse; "
                f"got method={problem.solver.method!r}."
            )
        if problem.event is not None:
            raise ValueError("gradient='reversible' does not support events; use gradient='direct'.")
        if problem.solver.grid is None:
            # Land on every observation: interpolated ones would need states inside steps.
            problem.solver = problem.solver.with_settings(step_t=(*problem.solver.settings.step_t, *problem.times))
        elif not set(problem.times) <= set(problem.solver.grid):
            raise ValueError(
                "gradient='reversible' with options['step_size'] needs every observation time on the grid."
            )
        return super().apply(problem, y0)

    def forward(self, problem: Problem, y0: Tensor) -> tuple[Tensor, Any]:
        steps: list[tuple[float, float]] = []
        last: list[Any] = [None, None]
        restarts: dict[int, Tensor] = {}  # v before a discontinuity, after which it starts anew

        def record(step: Any) -> None:
            if steps and step.f0 is not last[1]:
                restarts[len(steps)] = last[1]
            steps.append((step.t0, step.t1))
            last[:] = [step.y1, step.carry]

        ys = problem.run(y0, accepted=record)
        return ys, (steps, last, restarts, y0)

    def backward(self, problem: Problem, memory: Any, grad_ys: Tensor) -> Gradients:
        steps, (y, v), restarts, y0 = memory
        end = y
        products, stepper = Products(problem), problem.solver.stepper
        if not steps:
            return Gradients(grad_ys.sum(0), products.sums)
        at = {t: k for k, t in enumerate(problem.times)}
        eta = stepper.eta
        a, a_v = torch.zeros_like(y), torch.zeros_like(y)
        jumps = set(problem.solver.settings.jump_t)
        for index in range(len(steps) - 1, -1, -1):
            t0, t1 = steps[index]
            h = t1 - t0
            if t1 in at:
                a = a + grad_ys[at[t1]]
            middle = y - v * (0.5 * h)
            out, point = products.record(t0 + 0.5 * h, middle)
            a_v = a_v + a * (0.5 * h)
            found = products.transpose(out, point, 2.0 * eta * a_v)
            u = out.detach()
            v = (v - 2.0 * eta * u) / (1.0 - 2.0 * eta)
            y = middle - v * (0.5 * h)
            a = a + found
            a_v = (1.0 - 2.0 * eta) * a_v + a * (0.5 * h)
            if index == 0 or index in restarts:  # v was f(t0, y) here
                out, point = products.record(t0, y, int(math.copysign(1.0, h)) if t0 in jumps else 0)
                a = a + products.transpose(out, point, a_v)
                v, a_v = restarts.get(index, v), torch.zeros_like(y)
        _check_reconstruction(problem, y, y0, end)
        return Gradients(a + grad_ys[0], products.sums)


def _check_reconstruction(problem: Problem, found: Tensor, y0: Tensor, end: Tensor) -> None:
    """Warn if the inverse steps did not lead back to the initial state.

    The inverse is exact but for rounding, which grows backwards in time as fast as the dynamics contract forwards, and
    by 1 / |1 - 2 eta| a step. The gradient is then that of another trajectory.
    """
    settings = problem.solver.settings
    rtol, atol = (float(x.max()) if isinstance(x, Tensor) else x for x in (settings.rtol, settings.atol))
    size = max(float(rms_norm(y0)), float(rms_norm(end)))
    allowed = max(rtol, 100 * torch.finfo(y0.dtype).eps) * size + atol
    distance = float(rms_norm(found - y0))
    if not distance <= allowed:
        warnings.warn(
            f"The states that gradient='reversible' reconstructed end {distance:.1e} away from y0, more than the "
            f"tolerance of {allowed:.1e}: rounding grows backwards in time where the dynamics contract, and the "
            "gradient is not to be trusted. Use gradient='discrete' or 'direct', a shorter interval, or float64.",
            QuadjointWarning,
            stacklevel=2,
        )
