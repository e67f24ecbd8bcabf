"""Runge-Kutta steps under ``torch.compile``: one graph a step, for the forward and, by AOTAutograd, the backward pass.

The graph takes t, dt and the tolerances as tensors, so that none of them causes a recompilation. It is kept per
function and method; shapes and dtypes are guarded by torch.compile itself.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from quadjoint.dynamics import Dynamics
from quadjoint.errors import SolveError, warn_once
from quadjoint.problem import Problem
from quadjoint.state import rms_norm
from quadjoint.steppers import Clock, RungeKutta, RungeKuttaStep

_compiled: weakref.WeakKeyDictionary[Any, dict[Any, Callable[..., Any]]] = weakref.WeakKeyDictionary()
_numbers = itertools.count()
# On small networks the Python wrapper of a graph costs more than its kernels, hence the C++ one.
COMPILE: dict[str, Any] = {"backend": "inductor", "dynamic": False, "options": {"cpp_wrapper": True}}


class CompiledStep(RungeKuttaStep):
    """A step whose stages came from one graph, stacked."""

    __slots__ = ("ratio", "stages")

    def __init__(self, *args: Any, stages: Tensor, ratio: Tensor | None) -> None:
        super().__init__(*args)
        self.stages, self.ratio = stages, ratio

    def stacked(self) -> Tensor:
        extra = self.ks[len(self.stages) :]
        return torch.cat([self.stages, torch.stack(extra)]) if extra else self.stages


class CompiledRungeKutta(RungeKutta):
    """As ``RungeKutta``; steps of the function ``f`` run in a compiled graph."""

    def __init__(self, eager: RungeKutta, run: Callable[..., Any], scales: tuple[Tensor, Tensor]) -> None:
        super().__init__(eager.tableau)
        self.eager, self.run, self.scales = eager, run, scales
        self.broken = False

    def step(self, f: Dynamics, t0: float, t1: float, y: Tensor, carry: Tensor | None = None,
             nudge: tuple[int, int] = (0, 0), clock: Clock | None = None) -> RungeKuttaStep:  # fmt: skip
        if self.broken or nudge != (0, 0) or clock is not None:
            return self.eager.step(f, t0, t1, y, carry, nudge, clock)
        if torch.is_grad_enabled() and not y.requires_grad:
            y = y.detach().requires_grad_()  # one graph for the first and all later steps
        k = f(t0, y) if carry is None else carry
        try:
            y1, stages, ratio = self.call(f, t0, t1, y, k)
        except (SolveError, KeyboardInterrupt, ValueError, TypeError):
            raise
        except Exception as error:
            self.broken = True
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warn_once(
                f"compile {type(f.f).__name__}",
                f"The dynamics {type(f.f).__name__} could not be compiled ({type(error).__name__}: {reason}); "
                "the solve goes on without compilation.",
            )
            return self.eager.step(f, t0, t1, y, carry, nudge, clock)
        f.evaluations += self.stages - 1
        ks = list(stages.unbind(0))
        return CompiledStep(self, f, t0, t1, y, ks, [y], y1, t1 - t0, nudge, clock, carry is not None,
                            stages=stages, ratio=ratio)  # fmt: skip

    def call(self, f: Dynamics, t0: float, t1: float, y: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Run the graph: end of the step, stacked stages, error in units of the tolerance."""
        times = torch.tensor([t0, t1 - t0], dtype=f.time_dtype, device=y.device)
        return self.run(times, y, k, *self.scales)


def compile_steps(problem: Problem) -> None:
    """Let the solver of ``problem`` take compiled steps, if it takes Runge-Kutta steps."""
    stepper, f, settings = problem.solver.stepper, problem.f, problem.solver.settings
    if type(stepper) is not RungeKutta:
        warn_once(
            f"compile method {problem.solver.method}",
            f"compile=True has no effect with method {problem.solver.method!r}; it compiles Runge-Kutta steps.",
        )
        return
    with_ratio = stepper.adaptive and settings.norm is rms_norm
    run = _graph(problem, stepper, with_ratio)
    scales = tuple(torch.as_tensor(x, dtype=f.time_dtype, device=f.device) for x in (settings.rtol, settings.atol))
    problem.solver.stepper = CompiledRungeKutta(stepper, run, scales)  # type: ignore[arg-type]


def _graph(problem: Problem, stepper: RungeKutta, with_ratio: bool) -> Callable[..., Any]:
    f = problem.f
    key = (stepper.tableau.name, f.layout, with_ratio)
    try:
        known = _compiled.setdefault(f.f, {})
    except TypeError:
        known = {}
    if f.time_map is not None:
        return torch.compile(_step_function(f, stepper, with_ratio), **COMPILE)
    if key not in known:
        # Only what the graph needs: a Dynamics would keep the whole problem, and f itself, alive.
        known[key] = torch.compile(_step_function(f.for_tracing(), stepper, with_ratio), **COMPILE)
    return known[key]


def _step_function(f: Dynamics, method: RungeKutta, with_ratio: bool) -> Callable[..., Any]:
    rows, nodes, weights = method.rows, method.nodes, method.weights
    error_weights, stages, fsal = method.error_weights, method.stages, method.fsal
    evaluate = f.raw

    def step(times: Tensor, y: Tensor, k: Tensor, rtol: Tensor, atol: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        t, dt = times[0], times[1]
        ks = [k]
        last = y
        for i in range(1, stages):
            last = y
            for j, w in rows[i]:
                last = last + (w * dt) * ks[j]
            ks.append(evaluate(t + nodes[i] * dt, last))
        end = last
        if not fsal:
            end = y
            for j, w in weights:
                end = end + (w * dt) * ks[j]
        ratio = None
        if with_ratio and error_weights is not None:
            error = torch.zeros_like(y)
            for j, w in error_weights:
                error = error + (w * dt) * ks[j].detach()
            scale = atol + rtol * torch.maximum(y.detach().abs(), end.detach().abs())
            ratio = (error / scale).abs().square().mean().sqrt()
        return end, torch.stack(ks), ratio

    # torch.compile counts recompilations per code object; each function gets one of its own.
    step.__code__ = step.__code__.replace(co_name=f"step_{next(_numbers)}")
    return step
