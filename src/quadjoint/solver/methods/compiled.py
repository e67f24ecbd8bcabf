"""Runge-Kutta steps under ``torch.compile``: one graph a step, for the forward and, by AOTAutograd, the backward pass.

The graph takes times and tolerances as tensors, so that none of them causes a recompilation. It is kept per
function and method; shapes and dtypes are guarded by torch.compile itself.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.errors import SolveError, warn_once
from quadjoint.solver.dynamics import Dynamics
from quadjoint.solver.methods.explicit_stages import take_stages
from quadjoint.solver.methods.runge_kutta import RungeKutta
from quadjoint.solver.methods.runge_kutta_step import RungeKuttaStep
from quadjoint.solver.methods.sums import weighted
from quadjoint.solver.protocols import Clock, Nudge, VectorField
from quadjoint.solver.remembered import remembered
from quadjoint.solver.spec import Spec
from quadjoint.solver.state import relative_error, rms_norm

_numbers = itertools.count()
# On small networks the Python wrapper of a graph costs more than its kernels, hence the C++ one.
SETTINGS = {"cpp_wrapper": True}


def inductor(graph: Any, inputs: Any) -> Any:
    """torch's compiler, for steps whose backward pass can run twice."""
    return private.compile_with_inductor(graph, inputs, SETTINGS)


# Sizes are constants of the first graph of a function, and inputs of the next if they have changed until then.
COMPILE: dict[str, Any] = {"backend": inductor}


class CompiledStep(RungeKuttaStep):
    """A step whose stages came from one graph, stacked."""

    __slots__ = ("ratio", "stages")

    def __init__(self, *args: Any, stages: Tensor, ratio: Tensor | None, **named: Any) -> None:
        super().__init__(*args, **named)
        self.stages, self.ratio = stages, ratio

    def stacked(self) -> Tensor:
        extra = self.ks[len(self.stages) :]
        return torch.cat([self.stages, torch.stack(extra)]) if extra else self.stages


class CompiledRungeKutta(RungeKutta):
    """As ``RungeKutta``; steps of the function ``f`` run in a compiled graph."""

    keeps_inputs = False

    def __init__(
        self,
        eager: RungeKutta,
        run: Callable[..., Any],
        inputs: tuple[Tensor, ...],
        *,
        dynamics: Dynamics,
        give_up: Callable[[], None],
    ) -> None:
        vars(self).update(vars(eager))  # the same method
        self._smooth = None if eager.smooth is eager else eager.smooth
        self._eager, self.run, self.inputs, self.dynamics, self.give_up = eager, run, inputs, dynamics, give_up
        self.broken, self.calls = False, {True: 0, False: 0}  # with autograd and without

    @property
    def twice(self) -> RungeKutta:
        return self._eager

    @property
    def eager(self) -> RungeKutta:
        return self._eager

    def step(
        self,
        f: VectorField,
        t0: float,
        t1: float,
        y: Tensor,
        *,
        carry: Tensor | None = None,
        nudge: Nudge = (0, 0),
        clock: Clock | None = None,
    ) -> RungeKuttaStep:
        if self.broken or nudge != (0, 0) or clock is not None:
            return self.eager.step(f, t0, t1, y, carry=carry, nudge=nudge, clock=clock)
        if torch.is_grad_enabled() and not y.requires_grad:
            y = y.detach().requires_grad_()  # one graph for the first and all later steps
        k = f(t0, y) if carry is None else carry
        try:
            y1, stages, ratio = self.call(t0, t1, y, k)
        except (SolveError, ValueError, TypeError):
            raise
        except Exception as error:
            self.broken = True
            self.give_up()
            _warn(self.dynamics, error)
            return self.eager.step(f, t0, t1, y, carry=carry, nudge=nudge, clock=clock)
        self.dynamics.evaluations += self.stages - 1
        ks = list(stages.unbind(0))
        return CompiledStep(
            self,
            f,
            t0=t0,
            t1=t1,
            y0=y,
            y1=y1,
            ks=ks,
            inputs=[y],
            dt=t1 - t0,
            nudge=nudge,
            clock=clock,
            first_shared=carry is not None,
            stages=stages,
            ratio=ratio,
        )

    def call(self, t0: float, t1: float, y: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Run the graph: end of the step, stacked stages, error in units of the tolerance."""
        times = self.dynamics.time_vector([t0, t1, t1 - t0])
        grad = torch.is_grad_enabled()
        self.calls[grad] += 1
        if self.calls[grad] <= 2:
            # These may be traced: the first, and the second, whose state is the result of another operation. The
            # tracer gives warnings about itself, which must not become errors.
            with warnings.catch_warnings(), private.tracing():
                warnings.simplefilter("ignore")
                return self.run(times, y, k, *self.inputs)
        return self.run(times, y, k, *self.inputs)


def _warn(f: Dynamics, error: Exception) -> None:
    """Say why steps are no longer compiled, and what that costs."""
    name = type(f.f).__name__
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    what = f"could not be compiled ({type(error).__name__}: {reason})"
    if private.is_recompile_limit(error):
        what = (
            "have been compiled so often that torch gives up: something that they depend on, such as a number that is "
            "an attribute of an object, is another one in every solve (keep it in a tensor)"
        )
    warn_once(
        f"compile {name}",
        f"The dynamics {name} {what}; the solve goes on without compilation, as fast as with compile=False.",
    )


def with_compiled_steps(spec: Spec) -> Spec:
    """The same solve with compiled steps, if it takes Runge-Kutta steps."""
    stepper, f, settings = spec.solver.stepper, spec.f, spec.solver.settings
    if spec.samples is not None:
        warn_once(
            "compile independent",
            "compile=True has no effect with independent=True; it compiles steps that the whole batch shares.",
        )
        return spec
    if type(stepper) is not RungeKutta:
        warn_once(
            f"compile method {spec.solver.name}",
            f"compile=True has no effect with method {spec.solver.name!r}; it compiles Runge-Kutta steps.",
        )
        return spec
    with_ratio = stepper.adaptive and settings.norm is rms_norm
    key, evaluate, tensors = _parts(f)
    key = ("compiled", key, stepper.tableau.numbers, with_ratio)
    kept = remembered(f.f)
    if key not in kept:
        kept[key] = torch.compile(_step_function(evaluate, stepper, with_ratio), **COMPILE)
    if kept[key] is None:  # given up
        return spec
    scales = [torch.as_tensor(x, dtype=f.time_dtype, device=f.device) for x in (settings.rtol, settings.atol)]
    inputs, give_up = (*scales, *tensors), partial(kept.update, {key: None})
    compiled = CompiledRungeKutta(stepper, kept[key], inputs, dynamics=f, give_up=give_up)
    return replace(spec, solver=replace(spec.solver, stepper=compiled))


def _parts(f: Dynamics) -> tuple[Any, Callable[..., Tensor], tuple[Tensor, ...]]:
    """What tells graphs of f apart, the function that one computes, and the tensors that differ from solve to solve.

    Dynamics that are made anew for every solve, such as those with a path of noise, have a method ``compile_parts``
    that tells these apart; a graph is then made once for all of them.
    """
    layout, packed, precision = f.layout, f.packed, f.precision
    split = getattr(f.f, "compile_parts", None)
    key, inner, tensors = (getattr(f.f, "__func__", None), f.f, ()) if split is None else split()
    count, inner = len(tensors), f.lowered(inner)
    clock, of_clock = (None, ()) if f.time_map is None else f.time_map.parts()

    def evaluate(t: Tensor, y: Tensor, *extra: Tensor) -> Tensor:
        own, rate = extra[:count], None
        if clock is not None:
            t, rate = clock(t, *extra[count:])
        out = layout.pack(inner(t, layout.unpack(y), *own)) if packed else inner(t, y, *own)
        out = out if rate is None else out * rate
        return out if precision is None else out.to(y.dtype)

    return (key, precision, layout, type(f.time_map), f.time_dtype, len(f.shape)), evaluate, (*tensors, *of_clock)


def _step_function(evaluate: Callable[..., Tensor], method: RungeKutta, with_ratio: bool) -> Callable[..., Any]:
    def step(
        times: Tensor, y: Tensor, k: Tensor, rtol: Tensor, atol: Tensor, *extra: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        def f(t: Any, y: Tensor, nudge: int = 0) -> Tensor:
            return evaluate(t, y, *extra)

        t0, t1, dt = times.unbind()
        ks, _, y1, _ = take_stages(method, f, (t0, t1), y, k, dt=dt, length=dt)
        ratio = None
        if with_ratio and method.error_weights is not None:
            error = weighted([k.detach() for k in ks], method.error_weights, dt)
            ratio = rms_norm(relative_error(error, y.detach(), y1.detach(), rtol=rtol, atol=atol))
        return y1, torch.stack(ks), ratio

    # torch.compile counts recompilations per code object; each function gets one of its own.
    step.__code__ = step.__code__.replace(co_name=f"step_{next(_numbers)}")
    return step
