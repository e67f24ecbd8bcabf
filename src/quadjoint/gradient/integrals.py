"""The parameter integral int a^T df/dtheta dt: as part of the backward ODE, or by quadrature over its solution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quadjoint.gradient.parameters import Products
from quadjoint.problem import Problem
from quadjoint.quadrature import ErrorControlled, NodePolicy, PerStep, Span

Split = Callable[[float, Tensor], tuple[Tensor, Tensor]]  # time and backward state to (z, a)


@dataclass(frozen=True)
class InState:
    """Carry the integral through the backward solve; ``seminorm`` leaves it out of the error estimate."""

    seminorm: bool = False


@dataclass(frozen=True)
class Quadrature:
    """A weighted sum of the integrand at nodes of the backward solve."""

    nodes: NodePolicy = PerStep()  # noqa: RUF009 (frozen)


class QuadratureSum:
    """Adds the integrand at the nodes as the backward solve passes them."""

    def __init__(self, policy: NodePolicy, problem: Problem, products: Products, split: Split, order: int) -> None:
        self.policy, self.problem, self.products, self.split, self.order = (
            policy,
            problem,
            products,
            split,
            order,
        )
        times = problem.times
        self.total = abs(times[-1] - times[0])
        self.sign = math.copysign(1.0, times[-1] - times[0])  # dt of the forward solve; weights are positive
        self.steps: list[Any] = []  # kept where panels are refined afterwards
        self.pending: list[tuple[float, float]] = []
        if policy.per == "interval":
            # From the last interval to the first, as the backward solve meets them.
            for k in range(len(times) - 1, 0, -1):
                self.pending += sorted(
                    policy.nodes(self._span(times[k], times[k - 1])), key=lambda n: abs(n[0] - times[k])
                )
        self.position = 0
        self.batch: list[tuple[float, Tensor, Tensor]] = []
        self.rows = max(1, problem.f.shape[:-1].numel()) if problem.f.shape else 1

    def _span(self, start: float, end: float) -> Span:
        return Span(start, end, self.total, self.problem.stats.forward_evaluations, self.order)

    def observe(self, step: Any) -> None:
        """Take in an accepted step of the backward solve."""
        if isinstance(self.policy, ErrorControlled):
            self.steps.append(step)
            return
        if self.policy.per == "step":
            nodes = self.policy.nodes(self._span(step.t0, step.t1))
        else:
            first = self.position
            sign = 1.0 if step.t1 >= step.t0 else -1.0
            while self.position < len(self.pending) and sign * self.pending[self.position][0] <= sign * step.t1:
                self.position += 1
            nodes = self.pending[first : self.position]
        self._collect(step, nodes)

    def _collect(self, step: Any, nodes: Sequence[tuple[float, float]]) -> None:
        if not nodes:
            return
        states = step.evaluate([t for t, _ in nodes])
        for (t, w), state in zip(nodes, states, strict=True):
            z, a = self.split(t, state)
            self.batch.append((t, z, a * (self.sign * w)))
        self.problem.stats.quadrature_nodes += len(nodes)
        if len(self.batch) * self.rows >= 512:
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
        """Level by level: measure each panel's error, add the good ones, halve the others."""
        panels = [(step, step.t0, step.t1) for step in self.steps]
        error, reached = 0.0, 0.0
        for depth in range(policy.max_depth + 1):
            measured = [(panel, *self._panel(policy, *panel)) for panel in panels]
            if depth == 0:
                reached = self._norm_of_sum([value for _, value, _ in measured])
            again = []
            for (step, start, end), value, estimate in measured:
                allowed = policy.rtol * reached * abs(end - start) / self.total
                if estimate > allowed and depth < policy.max_depth:
                    middle = 0.5 * (start + end)
                    again += [(step, start, middle), (step, middle, end)]
                else:
                    self.products.add(value)
                    error += estimate
            panels = again
            if not panels:
                break
        norm = self._norm_of_sum([self.products.sums])
        self.problem.stats.gradient_error = error / norm if norm > 0 else error

    def _panel(self, policy: ErrorControlled, step: Any, start: float, end: float) -> tuple[list[Tensor | None], float]:
        """The integral over one panel and the norm of its estimated error."""
        nodes, difference = policy.pair(start, end)
        times = [t for t, _ in nodes]
        pairs = [self.split(t, state) for t, state in zip(times, step.evaluate(times), strict=True)]
        zs, a = torch.stack([z for z, _ in pairs]), torch.stack([self.sign * a for _, a in pairs])
        self.problem.stats.quadrature_nodes += len(nodes)
        out = self.products.record_stack(times, zs)
        if not out.requires_grad or not self.problem.params:
            return [None] * len(self.problem.params), 0.0
        shape = (-1, *(1,) * (a.ndim - 1))
        weights = torch.tensor([[w for _, w in nodes], difference], dtype=a.dtype, device=a.device)
        params = self.problem.params
        value = torch.autograd.grad(out, params, a * weights[0].reshape(shape), retain_graph=True, allow_unused=True)
        gap = torch.autograd.grad(out, params, a * weights[1].reshape(shape), allow_unused=True)
        self.problem.stats.vjp_params += 2
        return list(value), self._norm_of_sum([gap])

    def _norm_of_sum(self, gradients: Sequence[Sequence[Tensor | None]]) -> float:
        """Euclidean norm over all parameters of the sum of several gradients."""
        squares = 0.0
        for parts in zip(*gradients, strict=True):
            present = [p for p in parts if p is not None]
            if present:
                squares += float(torch.linalg.vector_norm(sum(present[1:], present[0]))) ** 2
        return squares**0.5
