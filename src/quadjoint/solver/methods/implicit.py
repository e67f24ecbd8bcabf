"""Implicit Runge-Kutta steps, fully and diagonally implicit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.solver.methods.newton import NewtonSettings
from quadjoint.solver.methods.recorded_stages import StageSystem, correct
from quadjoint.solver.methods.runge_kutta import RungeKutta
from quadjoint.solver.methods.runge_kutta_step import RungeKuttaStep
from quadjoint.solver.methods.sample_stages import SampleSolved, SampleStageSolver, remaining
from quadjoint.solver.methods.stage_solve import Block, Memory, Solved, StageSolver, blocks_of
from quadjoint.solver.methods.stages import StageMatrix
from quadjoint.solver.methods.sums import Weights, combine, nonzero, stage_time, weighted
from quadjoint.solver.methods.tableau import ButcherTableau
from quadjoint.solver.protocols import Clock, Nudge, Step, Time, VectorField

INSIDE = 0.4  # fraction of a step at which its polynomial is held against the differential equation


def _defect(tableau: ButcherTableau) -> tuple[Weights, Weights] | None:
    """Weights of the stages in the state and in the slope inside of a step; None if more stages are needed for it."""
    if tableau.extra_stages:
        return None
    degrees = np.arange(1, tableau.dense.shape[1] + 1)
    return nonzero(tableau.dense_weights([INSIDE])[0]), nonzero(tableau.dense @ (degrees * INSIDE ** (degrees - 1.0)))


class ImplicitStep(RungeKuttaStep):
    """A step whose stages solve equations; ``failed`` if no solution was found.

    In steps of the samples' own, ``lost`` are those samples for which none was found.
    """

    __slots__ = ("exact_start", "failed", "iterations", "lost", "memory", "next_memory", "ratio")
    method: ImplicitRungeKutta

    def __init__(
        self,
        *args: Any,
        memory: Memory,
        next_memory: Memory | None,
        iterations: int,
        failed: bool,
        lost: Tensor | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        self.lost = lost
        self.memory: Memory | None = memory
        self.next_memory, self.iterations, self.failed = next_memory, iterations, failed
        self.exact_start = memory.exact and self.method.starts_explicit
        self.ratio = math.inf if failed else None

    @property
    def carry(self) -> Memory | None:
        if self.nudge[1] or self.next_memory is None:
            return None
        # The next step begins with f(t1, y1); a last stage elsewhere only helps to predict stages that are solved for.
        helps = self.method.tableau.stiffly_accurate or not self.method.starts_explicit
        slope = self.ks[self.method.tableau.stages - 1] if helps else None
        if self.lengths is None:
            return replace(self.next_memory, slope=slope)
        assert self.memory is not None
        return remaining(self.next_memory, self.memory, slope, self.lengths != 0.0)

    @property
    def retry(self) -> Memory | None:
        return self.memory

    @property
    def slope(self) -> Tensor | None:
        return None if self.memory is None else self.memory.slope

    @property
    def settled(self) -> bool:
        """Whether the next step can use the same factors, if it is as long."""
        return self.next_memory is not None and self.next_memory.factors is not None

    @property
    def error(self) -> Tensor | None:
        """The estimate for the end of the step, and half of that for states inside of it, as one.

        In stiff components a step may end right although it is too long for its polynomial u. The defect u' - f(t, u)
        shows it: h gamma times it, filtered by (I - h gamma J)^-1, is the error of u there if h J is large, and a
        part of it if h J is small.
        """
        found = super().error
        if found is None:
            return None
        assert self.memory is not None and self.memory.samples is not None and self.memory.jacobian is not None
        method, samples = self.method, self.memory.samples
        with torch.no_grad():
            dt = self.dt.detach() if isinstance(self.dt, Tensor) else self.dt
            known = (self.memory.factors or (dt, {}))[1]  # those of the stages may have the same gamma
            factors = known.get(id(method.filter)) or self.memory.jacobian.factorize(method.filter, samples.spread(dt))

            def filtered(x: Tensor) -> Tensor:
                return samples.state_of(factors.solve(samples.rows_of(x)[:, None])[:, 0])

            if method.tableau.error_filter is not None:
                found = filtered(found)
            if method.defect is None:
                return found
            u = combine(self.y0.detach(), self.ks, method.defect[0], dt)
            slope = weighted(self.ks, method.defect[1], 1.0)
            ends: tuple[Time, Time] = self.clock or (self.t0, self.t1)
            time = stage_time(INSIDE, ends, ends[1] - ends[0])
            inside = filtered((slope - self.f(time, u)) * (dt * (0.5 * float(method.filter.a[0, 0]))))
            return (found.abs().square() + inside.abs().square()).sqrt()


class ImplicitRungeKutta(RungeKutta):
    """Steps of one implicit Runge-Kutta method.

    ``corrections`` says how often a step that autograd records can be differentiated, once or twice.
    """

    transformable = False  # the derivative of the stages is not that of the iteration

    def __init__(
        self,
        tableau: ButcherTableau,
        smooth: ImplicitRungeKutta | None = None,
        *,
        newton: NewtonSettings | None = None,
        corrections: int = 1,
    ) -> None:
        super().__init__(tableau, smooth)
        self.newton, self.corrections = newton or NewtonSettings(), corrections
        self.blocks = blocks_of(tableau)
        self.starts_explicit = not tableau.a[0].any()
        single = [block.matrix for block in self.blocks if block.matrix is not None and block.matrix.q == 1]
        gamma = tableau.error_filter or (float(single[0].a[0, 0]) if single else 0.25)
        alike = [matrix for matrix in single if float(matrix.a[0, 0]) == gamma]
        self.filter = alike[0] if alike else StageMatrix(np.array([[gamma]]))
        self.defect = _defect((smooth or self).tableau)

    def within(self, rtol: float | Tensor, atol: float | Tensor) -> ImplicitRungeKutta:
        newton = replace(self.newton, rtol=None if self.newton.rtol is None else rtol, atol=atol)
        return ImplicitRungeKutta(self.tableau, self._smooth, newton=newton)  # type: ignore[arg-type]

    @property
    def twice(self) -> ImplicitRungeKutta:
        return ImplicitRungeKutta(self.tableau, self._smooth, newton=self.newton, corrections=2)  # type: ignore[arg-type]

    def step(
        self,
        f: VectorField,
        t0: float,
        t1: float,
        y: Tensor,
        *,
        carry: Any = None,
        nudge: Nudge = (0, 0),
        clock: Clock | None = None,
    ) -> ImplicitStep:
        start, end = (t0, t1) if clock is None else clock
        memory = carry if isinstance(carry, Memory) else Memory(slope=carry)
        if self.starts_explicit and memory.slope is None:
            memory = replace(memory, slope=f(start, y, nudge[0]), exact=True)
        slope = memory.slope
        with torch.no_grad():
            begin, stop = (x.detach() if isinstance(x, Tensor) else x for x in (start, end))
            kind = SampleStageSolver if isinstance(begin, Tensor) and begin.ndim else StageSolver
            solver = kind(self.tableau, self.blocks, self.newton, f, y.detach(), begin, stop, nudge)
            solved = solver.solve(replace(memory, slope=None if slope is None else slope.detach()))
        failed = solved.failure is not None
        clocked = replace(solver, y=y, start=start, end=end)
        if torch.is_grad_enabled() and not failed:
            self._record(clocked, solved, slope)
        y1 = y if failed else solved.inputs[-1] if self.tableau.stiffly_accurate else None
        return ImplicitStep(
            self,
            f,
            t0=t0,
            t1=t1,
            y0=y,
            y1=combine(y, solved.ks, self.weights, clocked.dt) if y1 is None else y1,
            ks=solved.ks,
            inputs=solved.inputs,
            dt=clocked.dt,
            nudge=nudge,
            clock=clock,
            first_shared=self.starts_explicit and not memory.exact,
            memory=replace(solved.memory, slope=slope),
            next_memory=None if failed else solver.handed_on(solved),
            iterations=solved.iterations,
            failed=failed,
            lost=solved.lost if isinstance(solved, SampleSolved) else None,
        )

    def forget(self, step: Step) -> None:
        """Free Jacobians and factors, once the next step has them."""
        assert isinstance(step, ImplicitStep)
        step.memory = step.next_memory = None

    def _record(self, at: StageSolver, solved: Solved, slope: Tensor | None) -> None:
        """Put in place of the stages the same ones, such that autograd can differentiate them."""
        found, solved.ks, solved.inputs = solved.ks, [], []
        for block in self.blocks:
            if block.matrix is not None:
                self._record_block(at, solved, block, block.matrix)
                continue
            i = block.first
            state = combine(at.y, solved.ks, block.before[0], at.dt)
            solved.inputs.append(state)
            if i == 0 and slope is not None:
                solved.ks.append(slope)
            else:
                solved.ks.append(at.f(at.time(i), state, at.nudge_at(i)))
        assert len(found) == len(solved.ks)

    def _record_block(self, at: StageSolver, solved: Solved, block: Block, matrix: StageMatrix) -> None:
        samples = solved.memory.samples
        assert samples is not None
        z = solved.zs[block.first]
        bases = [combine(at.y, solved.ks, weights, at.dt) for weights in block.before]
        h = samples.spread(at.dt)

        def evaluate(z: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
            ys = [base + samples.state_of(z[:, i]) for i, base in enumerate(bases)]
            ys = [x if x.requires_grad else x.requires_grad_() for x in ys]
            fs = [at.f(at.time(i), x, at.nudge_at(i)) for i, x in enumerate(ys, block.first)]
            slopes = torch.stack([samples.rows_of(x) for x in fs], dim=1)
            return ys, fs, torch.matmul(matrix.constant("a", slopes), slopes) * h

        ys, fs, image = evaluate(z)
        system = StageSystem(
            samples, matrix, h.detach() if isinstance(h, Tensor) else h, ys, fs, twice=self.corrections > 1
        )
        z = z + correct(system, image)
        for _ in range(self.corrections - 1):
            z = z + correct(system, evaluate(z)[2] - z)
        slopes = at.slopes(matrix, z, h)
        solved.ks += [samples.state_of(slopes[:, i]) for i in range(matrix.q)]
        solved.inputs += [base + samples.state_of(z[:, i]) for i, base in enumerate(bases)]
