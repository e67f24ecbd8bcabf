"""Runge-Kutta methods as steppers.

A stepper does not decide whether a step is good or how long the next one is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quadjoint.solver.methods.explicit_stages import sum_columns, sums_pay, take_stages
from quadjoint.solver.methods.runge_kutta_step import RungeKuttaStep
from quadjoint.solver.methods.sums import like_state, nonzero, stage_time
from quadjoint.solver.methods.tableau import ButcherTableau
from quadjoint.solver.protocols import Clock, Nudge, Stepper, Time, VectorField


class RungeKutta(Stepper):
    """Steps of one explicit Runge-Kutta method.

    ``smooth`` is the method with its own continuous extension, for one that interpolates by straight lines.
    """

    transposable = True
    clocked = True
    keeps_inputs = True

    def __init__(self, tableau: ButcherTableau, smooth: RungeKutta | None = None) -> None:
        self.tableau = tableau
        self._smooth = smooth
        self.order, self.dense_order = tableau.order, tableau.dense_order
        self.adaptive = tableau.b_error is not None
        s = tableau.stages
        self.rows = [nonzero(row) for row in tableau.a] + [nonzero(row) for row in tableau.a_extra]
        self.nodes = [float(c) for c in tableau.c] + [float(c) for c in tableau.c_extra]
        self.weights = nonzero(tableau.b)
        self.error_weights = None if tableau.b_error is None else nonzero(tableau.b_error)
        self.fsal = tableau.fsal
        self.stages = s
        self.evaluations = s - 1 if self.fsal else s
        self.no_nudges = [0] * len(self.nodes)
        self.pays_to_sum = sums_pay(self)
        self._columns: dict[Any, list[Tensor]] = {}
        self._constants: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    @property
    def name(self) -> str:
        return self.tableau.name

    def columns(self, y: Tensor) -> list[Tensor]:
        """The columns of ``sum_columns``, made once for all states alike."""
        key = y.dtype, y.device, y.ndim
        if key not in self._columns:
            made = sum_columns(self, y)
            if type(made[0]) is not Tensor:  # of a mode that only pretends to compute
                return made
            self._columns[key] = made
        return self._columns[key]

    @property
    def estimate_order(self) -> int:
        return self.tableau.estimate_order

    @property
    def eager(self) -> RungeKutta:
        return self

    @property
    def smooth(self) -> RungeKutta:
        return self._smooth or self

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
        ends: tuple[Time, Time] = clock or (t0, t1)
        length = ends[1] - ends[0]
        dt = like_state(length, y)
        times: Sequence[Time] | None = None
        if isinstance(length, Tensor) and length.ndim:
            dt, times = self._own_times(*ends, length, y)
        k = f(ends[0] if times is None else times[0], y, nudge[0]) if carry is None else carry
        if not isinstance(length, Tensor):
            times = f.as_tensors([stage_time(c, (t0, t1), length) for c in self.nodes[: self.stages]])
        taken = take_stages(self, f, ends, y, k, dt=dt, length=length, nudge=nudge, times=times)
        return RungeKuttaStep(
            self,
            f,
            t0=t0,
            t1=t1,
            y0=y,
            y1=taken.y1,
            ks=taken.ks,
            inputs=taken.inputs,
            dt=dt,
            nudge=nudge,
            clock=clock,
            first_shared=carry is not None,
            error_sum=taken.error_sum,
        )

    def _own_times(self, start: Any, end: Any, length: Tensor, y: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """The lengths of the samples' own steps in the precision of the state, and the times of their stages.

        Times are added up in their own precision, and rounded for f last.
        """
        real = y.dtype.to_real()
        times = (start + self._nodes_like(length) * length).to(real).unbind()
        if end.dtype != real:
            return length.to(real), times
        return length, [end if c == 1.0 else times[i] for i, c in enumerate(self.nodes[: self.stages])]

    def _nodes_like(self, t: Tensor) -> Tensor:
        """The nodes of the stages, shaped to be multiplied by times of samples."""
        key = (t.dtype, t.device)
        if key not in self._constants:
            self._constants[key] = torch.tensor(self.nodes[: self.stages], dtype=t.dtype, device=t.device)
        return self._constants[key].view(-1, *(1,) * t.ndim)
