"""The stages of one implicit step, block by block.

The stages of a block, one or several that depend on each other, are Y = base + z with z = h A f(t, Y). Once z is found,
k = A^-1 z / h. Derivatives are not evaluated anew at the states found: in stiff directions f would enlarge what the
iteration has left by h |df/dy|.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from quadjoint.errors import SolveError
from quadjoint.solver.methods.extrapolation import extrapolation
from quadjoint.solver.methods.jacobian import Jacobian, Samples
from quadjoint.solver.methods.newton import Found, NewtonSettings, StageEquations, Yardstick, iterate
from quadjoint.solver.methods.stages import Factors, StageMatrix
from quadjoint.solver.methods.sums import Weights, combine, nonzero, stage_nudge, stage_time
from quadjoint.solver.methods.tableau import ButcherTableau
from quadjoint.solver.protocols import Nudge, Time, VectorField

KEPT = 1e-3  # contraction up to which a Jacobian is kept for the next step


@dataclass(frozen=True, eq=False)
class Block:
    """Stages ``first`` to ``last``, exclusive, that are solved for together; an explicit one has no ``matrix``."""

    first: int
    last: int
    matrix: StageMatrix | None
    before: Sequence[Weights]  # of the stages of earlier blocks, for each stage
    guess: Weights  # of earlier stages, in a prediction of z / h of the first stage of this block

    @property
    def apart(self) -> bool:
        """Whether the stages depend on none of the earlier ones."""
        return not any(self.before)


def blocks_of(tableau: ButcherTableau) -> list[Block]:
    """The blocks of a tableau; those with equal matrices share one."""
    matrices: dict[bytes, StageMatrix] = {}
    out = []
    for first, last in tableau.blocks:
        a = tableau.a[first:last, first:last]
        matrix = matrices.setdefault(a.tobytes(), StageMatrix(a)) if a.any() else None
        before = [nonzero(row[:first]) for row in tableau.a[first:last]]
        out.append(Block(first, last, matrix, before, _prediction(tableau, first)))
    return out


def _prediction(tableau: ButcherTableau, first: int) -> Weights:
    """Weights of the earlier stages in a prediction of z / h of stage ``first``.

    It is the polynomial through y0, with slope f(t0, y0) if that is a stage, and through the earlier Y_j. States are
    predicted from states, as in stiff components the slopes are much less accurate.
    """
    a, c = tableau.a, tableau.c
    explicit = not a[0].any()
    nodes = {float(c[j]): j for j in range(int(explicit), first)}  # of equal ones the last
    rows = [a[j] for j in nodes.values()]
    powers = np.arange(1, len(nodes) + explicit + 1)
    conditions = [x**powers for x in nodes]
    if explicit:
        rows.append(np.eye(len(c))[0])
        conditions.append((powers == 1) * 1.0)
    if not conditions or not first:
        return []
    weights = np.linalg.solve(np.array(conditions).T, float(c[first]) ** powers)
    z = weights @ np.array(rows) - np.where(np.arange(len(c)) < first, a[first], 0.0)
    return [(j, float(w)) for j, w in enumerate(z[:first]) if abs(w) > 1e-15]


@dataclass(frozen=True)
class Memory:
    """What a step hands on: the slope at its end, and what the iteration has learnt. It does not outlive the solve."""

    slope: Tensor | None = None  # the last stage of the step before, or f(t0, y0)
    exact: bool = True  # slope is f(t0, y0)
    samples: Samples | None = None
    jacobian: Jacobian | None = None
    fresh: bool = False  # the Jacobian is that at the start of the step
    factors: tuple[Time, dict[int, Factors]] | None = None  # a step size, and factors by the matrix of the stages
    eta: float | Tensor = 1.0  # of the samples, if each takes a step of its own
    previous: tuple[Time, Tensor] | None = None  # step size and z of the step before, where its stages are one block


@dataclass
class Solved:
    """Stages that were found, as far as they were."""

    memory: Memory  # with the Jacobian that was used
    ks: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    zs: dict[int, Tensor] = field(default_factory=dict)  # by the first stage of a block, shape (rows, q, d)
    failure: Found | None = None
    contraction: float = 0.0  # the worst of all blocks
    iterations: int = 0  # the most of all blocks


@dataclass(frozen=True)
class StageSolver:
    """Finds the stages of the step from ``y`` at ``start`` to ``end``; nothing is recorded by autograd."""

    tableau: ButcherTableau
    blocks: list[Block]
    settings: NewtonSettings
    f: VectorField
    y: Tensor
    start: Time
    end: Time
    nudge: Nudge
    batch: ClassVar[bool] = False  # whether every sample of a batch is solved for by itself

    @cached_property
    def dt(self) -> Time:
        """In the precision of the state, so that a state of one number keeps its own."""
        length = self.end - self.start
        return length.to(self.y.dtype.to_real()) if isinstance(length, Tensor) else length

    def solve(self, memory: Memory) -> Solved:
        """All stages; if they could not be found with a Jacobian from before, with the one at the start of the step."""
        solved = self._all(self._with_jacobian(memory))
        if solved.failure is not None and not solved.memory.fresh:
            solved = self._all(self._with_jacobian(replace(memory, jacobian=None)))
        if solved.failure is not None and self.settings.tight:
            self._give_up(solved.failure)
        return solved

    def handed_on(self, solved: Solved) -> Memory:
        """What the next step may use, but for the slope."""
        rate = solved.contraction
        keep = not self.settings.tight and (solved.iterations <= 2 or rate <= KEPT)
        eta = rate / (1.0 - rate) if rate < 1.0 else 1.0
        whole = self._whole(solved)
        return replace(
            solved.memory,
            exact=False,
            fresh=False,
            jacobian=solved.memory.jacobian if keep else None,
            factors=solved.memory.factors if keep else None,
            eta=min(1.0, max(eta, torch.finfo(self.y.dtype).eps) ** 0.8),
            previous=None if whole is None else (self.dt, whole),
        )

    def _with_jacobian(self, memory: Memory) -> Memory:
        if memory.jacobian is not None:
            return memory
        source, t, y, nudge = self.settings.jacobians, self.start, self.y, self.nudge[0]
        if memory.samples is None:
            samples, jacobian = source.first(self.f, t, y, nudge, batch=self.batch)
        else:
            samples, jacobian = memory.samples, source.again(self.f, t, y, nudge, memory.samples)
        return replace(memory, samples=samples, jacobian=jacobian, fresh=True, factors=None)

    def _all(self, memory: Memory) -> Solved:
        solved = Solved(memory)
        self._fill(solved)
        return solved

    def _fill(self, solved: Solved) -> None:
        """Find all stages, or as many as can be found."""
        assert solved.memory.samples is not None
        measure = Yardstick(self.settings, solved.memory.samples, self.y)
        for block in self.blocks:
            if block.matrix is not None:
                self._implicit(block, block.matrix, solved, measure)
                if solved.failure is not None:
                    break
                continue
            i = block.first
            y = combine(self.y, solved.ks, block.before[0], self.dt)
            known = i == 0 and solved.memory.slope is not None
            solved.inputs.append(y)
            solved.ks.append(solved.memory.slope if known else self.f(self.time(i), y, self.nudge_at(i)))  # type: ignore[arg-type]

    def _implicit(self, block: Block, matrix: StageMatrix, solved: Solved, measure: Yardstick) -> None:
        samples, q = solved.memory.samples, matrix.q
        assert samples is not None
        rows = [samples.rows_of(combine(self.y, solved.ks, weights, self.dt)) for weights in block.before]
        h = samples.spread(self.dt)
        times = [(self.time(i), self.nudge_at(i)) for i in range(block.first, block.last)]

        def evaluate(z: Tensor) -> Tensor:
            states = [samples.state_of(row + z[:, i]) for i, row in enumerate(rows)]
            slopes = [samples.rows_of(self.f(t, y, nudge)) for y, (t, nudge) in zip(states, times, strict=True)]
            return slopes[0][:, None] if q == 1 else torch.stack(slopes, dim=1)

        def refresh(z: Tensor) -> Factors:
            """Factors with the Jacobian at the last stage as it is now."""
            y = samples.state_of(rows[-1] + z[:, -1])
            return self.settings.jacobians.again(self.f, times[-1][0], y, times[-1][1], samples).factorize(matrix, h)

        measure = measure if block.apart else measure.around(rows)
        equations = StageEquations(evaluate, matrix, h, measure, self.settings.max_iters)
        z = self._find(equations, self._start(block, matrix, solved, h), solved, refresh)
        if z is None:
            return
        solved.zs[block.first] = z
        slopes = self.slopes(matrix, z, h)
        solved.ks += [samples.state_of(slopes[:, i]) for i in range(q)]
        solved.inputs += [samples.state_of(row + z[:, i]) for i, row in enumerate(rows)]

    def _find(
        self, equations: StageEquations, start: Tensor, solved: Solved, refresh: Callable[[Tensor], Factors]
    ) -> Tensor | None:
        """z of a block, or None after a failure, which is noted in ``solved``."""
        factors, eta = self._factors(solved, equations.stages, equations.h), float(solved.memory.eta)
        found = iterate(equations, start, factors, eta=eta, refresh=refresh if self.settings.tight else None)
        solved.iterations = max(solved.iterations, found.iterations)
        solved.contraction = max(solved.contraction, found.contraction)
        if not found.converged:
            solved.failure = found
            return None
        return found.z

    def slopes(self, matrix: StageMatrix, z: Tensor, h: Any) -> Tensor:
        """k = A^-1 z / h, shape (rows, q, d)."""
        if matrix.q == 1:
            return z / (h * float(matrix.a[0, 0]))
        return torch.matmul(matrix.constant("inverse", z), z) / h

    def _start(self, block: Block, matrix: StageMatrix, solved: Solved, h: Any) -> Tensor:
        """Where the iteration begins: the polynomial of the step before, or slopes that are known already."""
        previous = solved.memory.previous
        if previous is not None and matrix.q > 1 and block.apart:
            weights = extrapolation(self.tableau.c[block.first : block.last], self.dt, previous[0])
            if weights is not None:
                z = previous[1]
                return torch.matmul(torch.as_tensor(weights, dtype=z.dtype, device=z.device), z)
        return self._from_slopes(block, matrix, solved, h)

    def _from_slopes(self, block: Block, matrix: StageMatrix, solved: Solved, h: Any) -> Tensor:
        samples, memory = solved.memory.samples, solved.memory
        assert samples is not None
        if matrix.q == 1 and block.guess:
            return samples.rows_of(combine(torch.zeros_like(self.y), solved.ks, block.guess, self.dt))[:, None]
        if memory.slope is None:
            rows = samples.rows_of(self.y)
            return rows.new_zeros(samples.rows, matrix.q, samples.d)
        slopes = samples.rows_of(memory.slope)[:, None].expand(samples.rows, matrix.q, samples.d)
        return torch.matmul(matrix.constant("a", slopes), slopes * h)

    def _whole(self, solved: Solved) -> Tensor | None:
        """z of all stages, if they are one block."""
        last = self.blocks[-1]
        return solved.zs[last.first] if last.apart and last.last - last.first > 1 else None

    def _factors(self, solved: Solved, matrix: StageMatrix, h: Any) -> Factors:
        """Factors for this step size; of an earlier stage or step, if they are the same."""
        memory, dt = solved.memory, self.dt
        known = memory.factors
        same = known is not None and known[0] is dt  # of this step
        if known is not None and isinstance(known[0], float) and isinstance(dt, float):
            same = abs(known[0] - dt) <= 1e-9 * abs(dt)  # t1 - t0 of equal steps differs by rounding
        if known is None or not same:
            known = (dt, {})
            memory = solved.memory = replace(memory, factors=known)
        if id(matrix) not in known[1]:
            assert memory.jacobian is not None
            known[1][id(matrix)] = memory.jacobian.factorize(matrix, h)
        return known[1][id(matrix)]

    def time(self, i: int) -> Time:
        return stage_time(float(self.tableau.c[i]), (self.start, self.end), self.end - self.start)

    def nudge_at(self, i: int) -> int:
        return stage_nudge(float(self.tableau.c[i]), self.nudge)

    def _give_up(self, found: Found) -> None:
        t, h = (float(x.detach().abs().max()) if isinstance(x, Tensor) else x for x in (self.start, self.dt))
        raise SolveError(
            f"Newton's iteration did not converge at t = {t:.6g} with a step of length {abs(h):.3g}: after "
            f"{found.iterations} iterations the stages still change by {found.size:.1e} times their rounding. Take "
            "shorter steps (options['step_size']), allow more iterations (options['max_iters']), give the Jacobian "
            "(options['jacobian']), or use an adaptive method such as 'radauIIA5' or 'kvaerno5'."
        )
