"""Runge-Kutta steps under ``torch.compile``: one graph a step, for the forward and, by AOTAutograd, the backward pass.

The graph takes t, dt and the tolerances as tensors, so that none of them causes a recompilation. It is kept per
function and method; shapes and dtypes are guarded by torch.compile itself.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from quadjoint.autograd.leaves import upstream
from quadjoint.errors import SolveError, warn_once
from quadjoint.solver.dynamics import Dynamics
from quadjoint.solver.methods.runge_kutta import Clock, RungeKutta, RungeKuttaStep
from quadjoint.solver.problem import Problem
from quadjoint.solver.state import rms_norm
from quadjoint.solver.times import LinearMap, PiecewiseMap

KEPT = 64  # graphs, of which the one used longest ago is dropped first
_compiled: OrderedDict[Any, Callable[..., Any]] = OrderedDict()
_numbers = itertools.count()
# On small networks the Python wrapper of a graph costs more than its kernels, hence the C++ one.
SETTINGS = {"cpp_wrapper": True}


def reusable() -> AbstractContextManager[Any]:
    """Compile, or run, backward passes that leave the memory of the forward pass as it is, so that they can run again.

    torch looks at this setting at both times. A graph compiled without it, by the user, may then be run once even
    where autograd is told to retain the graphs around it, but not twice: see ``once_only``.
    """
    if "torch._dynamo" not in sys.modules:
        return nullcontext()  # nothing was compiled
    from torch._functorch import config

    return config.patch(donated_buffer=False) if hasattr(config, "donated_buffer") else nullcontext()


def once_only(out: Tensor) -> bool:
    """Whether graphs of ``torch.compile`` are among those behind ``out``: their backward pass may reuse buffers."""
    return "torch._dynamo" in sys.modules and any("CompiledFunction" in node.name() for node in upstream(out))


def inductor(graph: Any, inputs: Any) -> Any:
    """torch's compiler, for steps whose backward pass can run twice."""
    from torch._inductor.compile_fx import compile_fx

    with reusable():
        return compile_fx(graph, inputs, config_patches=SETTINGS)


COMPILE: dict[str, Any] = {"backend": inductor, "dynamic": False}


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

    def __init__(self, eager: RungeKutta, run: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
        super().__init__(eager.tableau, None if eager.smooth is eager else eager.smooth)
        self.eager, self.run, self.inputs = eager, run, inputs
        self.broken = self.traced = False

    def step(self, f: Dynamics, t0: float, t1: float, y: Tensor, carry: Tensor | None = None,
             nudge: tuple[int, int] = (0, 0), clock: Clock | None = None) -> RungeKuttaStep:  # fmt: skip
        if self.broken or nudge != (0, 0) or clock is not None:
            return self.eager.step(f, t0, t1, y, carry, nudge, clock)
        if torch.is_grad_enabled() and not y.requires_grad:
            y = y.detach().requires_grad_()  # one graph for the first and all later steps
        k = f(t0, y) if carry is None else carry
        try:
            y1, stages, ratio = self.call(f, t0, t1, y, k)
        except (SolveError, ValueError, TypeError):
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
        if not self.traced:
            # The tracer gives warnings about itself, which must not become errors.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                out = self.run(times, y, k, *self.inputs)
            self.traced = True
            return out
        return self.run(times, y, k, *self.inputs)


def compile_steps(problem: Problem) -> None:
    """Let the solver of ``problem`` take compiled steps, if it takes Runge-Kutta steps."""
    stepper, f, settings = problem.solver.stepper, problem.f, problem.solver.settings
    if type(stepper) is not RungeKutta:
        warn_once(
            f"compile method {problem.solver.method}",
            f"compile=True has no effect with method {problem.solver.method!r}; it compiles Runge-Kutta steps.",
        )
        return
    if isinstance(f.time_map, PiecewiseMap):
        return  # the continuous adjoints' way through times per sample, which restarts too often to gain
    with_ratio = stepper.adaptive and settings.norm is rms_norm
    owner, key, evaluate, tensors = _parts(f)
    key = (owner, key, stepper.tableau.name, with_ratio)
    if key not in _compiled:
        _compiled[key] = torch.compile(_step_function(evaluate, stepper, with_ratio), **COMPILE)
        while len(_compiled) > KEPT:
            _compiled.popitem(last=False)
    _compiled.move_to_end(key)
    scales = [torch.as_tensor(x, dtype=f.time_dtype, device=f.device) for x in (settings.rtol, settings.atol)]
    problem.solver.stepper = CompiledRungeKutta(stepper, _compiled[key], (*scales, *tensors))


def _parts(f: Dynamics) -> tuple[Any, Any, Callable[..., Tensor], tuple[Tensor, ...]]:
    """What a graph is kept for, the function that it computes, and the tensors that differ from solve to solve.

    Dynamics that are made anew for every solve, such as those with a path of noise, have a method ``compile_parts``
    that tells these apart; a graph is then made once for all of them.
    """
    layout, packed, mapped = f.layout, f.packed, f.time_map
    split = getattr(f.f, "compile_parts", None)
    owner, key, inner, tensors = (f.f, None, f.f, ()) if split is None else split()
    count = len(tensors)

    def evaluate(t: Tensor, y: Tensor, *extra: Tensor) -> Tensor:
        own, clock = extra[:count], extra[count:]
        if clock:
            t = clock[0] + t * clock[1]
        out = layout.pack(tuple(inner(t, layout.unpack(y), *own))) if packed else inner(t, y, *own)
        return out * clock[1] if clock else out

    if isinstance(mapped, LinearMap):
        tensors = (*tensors, mapped.start, mapped.length)
    return owner, (key, layout, mapped is not None), evaluate, tensors


def _step_function(evaluate: Callable[..., Tensor], method: RungeKutta, with_ratio: bool) -> Callable[..., Any]:
    rows, nodes, weights = method.rows, method.nodes, method.weights
    error_weights, stages, fsal = method.error_weights, method.stages, method.fsal

    def step(times: Tensor, y: Tensor, k: Tensor, rtol: Tensor, atol: Tensor, *extra: Tensor,
             ) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
        t, dt = times[0], times[1]
        ks = [k]
        last = y
        for i in range(1, stages):
            last = y
            for j, w in rows[i]:
                last = last + (w * dt) * ks[j]
            ks.append(evaluate(t + nodes[i] * dt, last, *extra))
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
