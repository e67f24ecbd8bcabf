"""The parameter integral int a^T df/dtheta dt: as part of the backward ODE, or by quadrature over its solution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quadjoint.errors import warn_once
from quadjoint.gradient.products import CHUNK_ROWS, Products
from quadjoint.gradient.quadrature import ErrorControlled, NodePolicy, PerStep, Span
from quadjoint.solver.problem import Problem

Split = Callable[[float, Tensor], tuple[Tensor, Tensor]]  # time and backward state to (z, a)


@dataclass(frozen=True)
class InState:
    """Carry the integral through the backward solve; ``seminorm`` leaves it out of the error estimate.

    >>> import torch, quadjoint as qj
    >>> qj.Seminorm().integral
    InState(seminorm=True)
    """

    seminorm: bool = False


@dataclass(frozen=True)
class Quadrature:
    """A weighted sum of the integrand at nodes of the backward solve.

    >>> import torch, quadjoint as qj
    >>> qj.ContinuousAdjoint(qj.Stored(), qj.Quadrature(qj.PerStep(3))).integral.nodes
    PerStep(q=3)
    """

    nodes: NodePolicy = PerStep()  # noqa: RUF009 (frozen)


@dataclass(frozen=True, eq=False)
class _Panel:
    """A piece of a backward step, and the norm of the estimated error of the integral over it."""

    step: Any
    start: float
    end: float
    depth: int
    error: float

    def halves(self) -> tuple[tuple[float, float], tuple[float, float]]:
        middle = 0.5 * (self.start + self.end)
        return (self.start, middle), (middle, self.end)


class QuadratureSum:
    """Adds the integrand at the nodes as the backward solve passes them."""

    def __init__(self, policy: NodePolicy, problem: Problem, products: Products, split: Split, order: int) -> None:
        self.policy, self.problem, self.products, self.split, self.order = policy, problem, products, split, order
        times = problem.times
        self.total = abs(times[-1] - times[0])
        self.sign = math.copysign(1.0, times[-1] - times[0])  # dt of the forward solve; weights are positive
        self.steps: list[Any] = []  # kept where panels are refined afterwards
        # (start of the interval, node, weight) from the last interval to the first, as the backward solve meets them
        self.pending: list[tuple[float, float, float]] = []
        if policy.per == "interval":
            for k in range(len(times) - 1, 0, -1):
                nodes = self._nodes(times[k], times[k - 1])
                self.pending += [(times[k], t, w) for t, w in sorted(nodes, key=lambda n: abs(n[0] - times[k]))]
        self.position = 0
        self.batch: list[tuple[float, Tensor, Tensor]] = []
        self.rows = max(1, problem.f.shape[:-1].numel()) if problem.f.shape else 1

    def _nodes(self, start: float, end: float) -> list[tuple[float, float]]:
        """What the policy says about a piece; nodes that rounding put outside are brought back."""
        # As many nodes for a repeated solve, which remembers its first step size, as for the first one.
        evaluations = self.problem.stats.forward_evaluations + self.problem.saved_evaluations
        span = Span(start, end, self.total, evaluations, self.order)
        low, high = min(start, end), max(start, end)
        return [(min(max(t, low), high), w) for t, w in self.policy.nodes(span)]

    def observe(self, step: Any) -> None:
        """Take in an accepted step of the backward solve."""
        if isinstance(self.policy, ErrorControlled):
            self.steps.append(step)
        elif self.policy.per == "step":
            self._collect(step, self._nodes(step.t0, step.t1))
        else:
            nodes = []
            for start, t, w in self.pending[self.position :]:
                # A node at the start of the next interval comes after the jump there.
                if self.sign * t < self.sign * step.t1 or self.sign * start <= self.sign * step.t1:
                    break
                nodes.append((t, w))
            self.position += len(nodes)
            self._collect(step, nodes)

    def _collect(self, step: Any, nodes: Sequence[tuple[float, float]]) -> None:
        if not nodes:
            return
        states = step.evaluate([t for t, _ in nodes])
        for (t, w), state in zip(nodes, states, strict=True):
            z, a = self.split(t, state)
            self.batch.append((t, z, a * (self.sign * w)))
        self.problem.stats.quadrature_nodes += len(nodes)
        if len(self.batch) * self.rows >= CHUNK_ROWS:
            self.flush()

    def flush(self) -> None:
        if self.batch:
            times, zs, a = zip(*self.batch, strict=True)
            self.products.stacked(times, torch.stack(zs), torch.stack(a))
            self.batch = []

    def finish(self) -> None:
        if isinstance(self.policy, ErrorControlled):
            self._refine(self.policy)
        self.flush()

    def _refine(self, policy: ErrorControlled) -> None:
        """Halve the panels with the largest errors until the sum of all is small enough.

        Only the sum is kept, not the integral of each panel: the integral of one that is halved is subtracted again.
        """
        panels = [self._whole(policy, step) for step in self.steps]
        error, stalled = sum(panel.error for panel in panels), 0
        epsilon = torch.finfo(self.problem.f.dtype).eps
        while stalled < 3:  # the error falls by a half at a discontinuity, by less only where it is rounding
            norm = _norm(self.products.sums)
            marked = _largest(panels, max(policy.rtol, epsilon) * norm, policy.max_depth)
            if not marked:
                break
            panels = [panel for panel in panels if panel not in marked]
            panels += [half for panel in marked for half in self._halved(policy, panel)]
            before, error = error, sum(panel.error for panel in panels)
            stalled = stalled + 1 if error > 0.65 * before else 0
        norm = _norm(self.products.sums)
        self.problem.stats.gradient_error = error / norm if norm > 0 else error
        if error > policy.rtol * norm:
            warn_once(
                f"quadrature {policy}",
                f"The parameter integral has an estimated relative error of {error / max(norm, 1e-300):.1e}, more than "
                f"the rtol = {policy.rtol:.1e} asked for: raise rtol or max_depth, or compute in float64.",
            )

    def _whole(self, policy: ErrorControlled, step: Any) -> _Panel:
        """Add the integral over a step."""
        nodes, difference = policy.pair(step.t0, step.t1)
        value, gap = self._weighted(step, [t for t, _ in nodes], [[w for _, w in nodes], difference])
        self.products.add(value)
        return _Panel(step, step.t0, step.t1, 0, _norm(gap))

    def _halved(self, policy: ErrorControlled, panel: _Panel) -> list[_Panel]:
        """Replace the integral over a panel by that over its halves."""
        whole, _ = policy.pair(panel.start, panel.end)
        pairs = [policy.pair(*half) for half in panel.halves()]
        nodes = [(t, -w) for t, w in whole] + [node for pair, _ in pairs for node in pair]
        n = len(whole)
        gaps = [[0.0] * n + pairs[0][1] + [0.0] * n, [0.0] * (2 * n) + pairs[1][1]]
        value, *found = self._weighted(panel.step, [t for t, _ in nodes], [[w for _, w in nodes], *gaps])
        self.products.add(value)
        depth = panel.depth + 1
        return [_Panel(panel.step, *h, depth, _norm(gap)) for h, gap in zip(panel.halves(), found, strict=True)]

    def _weighted(self, step: Any, times: list[float], weights: list[list[float]]) -> list[list[Tensor | None]]:
        """Several weighted sums of the integrand over nodes in one step, evaluated in chunks."""
        params, stats = self.problem.params, self.problem.stats
        pairs = [self.split(t, state) for t, state in zip(times, step.evaluate(times), strict=True)]
        zs, a = torch.stack([z for z, _ in pairs]), torch.stack([a for _, a in pairs])
        w = torch.tensor(weights, dtype=a.dtype, device=a.device).reshape(len(weights), -1, *(1,) * (a.ndim - 1))
        stats.quadrature_nodes += len(times)
        sums: list[list[Tensor | None]] = [[None] * len(params) for _ in weights]
        size = max(1, CHUNK_ROWS // self.rows)
        for first in range(0, len(times), size):
            part = slice(first, first + size)
            out = self.products.record_stack(times[part], zs[part])
            if not out.requires_grad:
                continue
            for total, row in zip(sums, w, strict=True):
                seed = a[part] * (self.sign * row[part])
                found = torch.autograd.grad(out, params, seed, retain_graph=True, allow_unused=True)
                stats.vjp_params += 1
                total[:] = [old if new is None else new if old is None else old + new
                            for old, new in zip(total, found, strict=True)]  # fmt: skip
        return sums


def _largest(panels: list[_Panel], allowed: float, max_depth: int) -> set[_Panel]:
    """The panels to halve: those with the largest errors, until the others together are well below ``allowed``."""
    left = sum(panel.error for panel in panels)
    marked: set[_Panel] = set()
    if left <= allowed:
        return marked
    for panel in sorted(panels, key=lambda p: -p.error):
        if left <= 0.5 * allowed or panel.error == 0.0:
            break
        if panel.depth < max_depth:
            marked.add(panel)
            left -= panel.error
    return marked


def _norm(gradients: Sequence[Tensor | None]) -> float:
    """Euclidean norm over all parameters."""
    norms = [torch.linalg.vector_norm(g).to(torch.float64) for g in gradients if g is not None]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0
