"""The parameter integral int a^T df/dtheta dt: as part of the backward ODE, or by quadrature over its solution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from quadjoint.gradient.base import Task
from quadjoint.gradient.products import Products
from quadjoint.quadrature import Heuristic, NodePolicy, Span
from quadjoint.solver.protocols import Step
from quadjoint.solver.rows import Rows

Split = Callable[[Tensor], tuple[Tensor, Tensor]]  # backward states, stacked, to (z, a)


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
    >>> qj.ContinuousAdjoint(qj.Quadrature(qj.PerStep(3))).integral.nodes
    PerStep(q=3)
    """

    nodes: NodePolicy = Heuristic()  # noqa: RUF009 (frozen)


class QuadratureSum:
    """Adds the integrand at the nodes as the backward solve passes them."""

    def __init__(
        self, policy: NodePolicy, task: Task, products: Products, *, split: Split, order: int, breaks: Sequence[float]
    ) -> None:
        """``breaks`` are the observations and the known discontinuities, from last to first."""
        self.policy, self.task, self.products, self.split, self.order = policy, task, products, split, order
        self.total = abs(breaks[-1] - breaks[0])
        self.sign = math.copysign(1.0, breaks[0] - breaks[-1])  # dt of the forward solve; weights are positive
        # (start of the interval, node, weight) from the last interval to the first, as the backward solve meets them
        self.pending: list[tuple[float, float, float]] = []
        if policy.per == "interval":
            for start, end in pairwise(breaks):
                nodes = sorted(self._nodes(start, end), key=lambda node: abs(node[0] - start))
                self.pending += [(start, t, w) for t, w in nodes]
        self.position = 0
        self.rows = Rows()  # times, states and weighted adjoints of nodes that wait
        self.size = products.stack_size()

    def _nodes(self, start: float, end: float) -> list[tuple[float, float]]:
        """What the policy says about a piece; nodes that rounding put outside are brought back."""
        span = Span(start, end, self.total, self.task.stats.forward_evaluations, self.order)
        low, high = min(start, end), max(start, end)
        return [(min(max(t, low), high), w) for t, w in self.policy.nodes(span)]

    def observe(self, step: Step) -> None:
        """Take in an accepted step of the backward solve."""
        if self.policy.per == "step":
            self._collect(step, self._nodes(step.t0, step.t1))
            return
        nodes = []
        for start, t, w in self.pending[self.position :]:
            # A node at the start of the next interval comes after the jump there.
            if self.sign * t < self.sign * step.t1 or self.sign * start <= self.sign * step.t1:
                break
            nodes.append((t, w))
        self.position += len(nodes)
        self._collect(step, nodes)

    def _collect(self, step: Step, nodes: Sequence[tuple[float, float]]) -> None:
        self.task.stats.quadrature_nodes += len(nodes)
        while nodes:
            room = self.size - self.rows.count
            part, nodes = nodes[:room], nodes[room:]
            z, a = self.split(step.evaluate([t for t, _ in part]))
            table = torch.tensor([(t, self.sign * w) for t, w in part], dtype=torch.float64)
            weights = table[:, 1].to(a).reshape(-1, *(1,) * (a.ndim - 1))
            self.rows.add(table[:, 0], z, a * weights)
            if self.rows.count >= self.size:
                self.flush()

    def flush(self) -> None:
        """Evaluate the nodes that wait, all at once."""
        if self.rows.count:
            self.products.add_stack(*self.rows.take())
