"""One-dimensional quadrature: Gauss-Legendre, and how many nodes to use where.

A rule is a pair of node and weight arrays on [-1, 1]. A node policy decides where the nodes of the parameter
integral lie; a new one is a small class with a method ``nodes`` (see the guide on extending).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

Rule = tuple[np.ndarray, np.ndarray]


@lru_cache(maxsize=256)
def gauss_legendre(n: int) -> Rule:
    """Nodes and weights on [-1, 1], exact for polynomials of degree 2n - 1.

    >>> nodes, weights = gauss_legendre(3)
    >>> round(float(weights @ nodes**4), 12)
    0.4
    """
    if n < 1:
        raise ValueError(f"A Gauss-Legendre rule needs at least one node; got n = {n}.")
    nodes, weights = np.polynomial.legendre.leggauss(n)
    nodes.flags.writeable = weights.flags.writeable = False
    return nodes, weights


def on_interval(rule: Rule, start: float, end: float) -> list[tuple[float, float]]:
    """Times and weights of ``rule`` on [start, end]; weights are positive also if end < start."""
    half, mid = 0.5 * (end - start), 0.5 * (end + start)
    return [(float(mid + half * x), float(abs(half) * w)) for x, w in zip(*rule, strict=True)]


@dataclass(frozen=True)
class Span:
    """What a node policy may look at: the piece to integrate over and the solve around it.

    >>> import torch, quadjoint as qj
    >>> span = qj.Span(start=0.0, end=0.5, total=1.0, forward_evaluations=40, order=5)
    >>> len(qj.Heuristic(c=0.1).nodes(span)), len(qj.PerStep().nodes(span))
    (2, 3)
    """

    start: float  # the backward solve runs from start ...
    end: float  # ... to end
    total: float  # length of the whole time interval
    forward_evaluations: int
    order: int  # of the solver


class NodePolicy(Protocol):
    """Where the nodes of the parameter integral lie.

    ``per`` is ``"interval"`` (between two observations) or ``"step"`` (of the backward solve): the pieces that
    ``nodes`` is asked about.
    """

    @property
    def per(self) -> str: ...

    def nodes(self, span: Span) -> list[tuple[float, float]]: ...


@dataclass(frozen=True)
class Heuristic:
    """The paper's rule: n = ceil(c * NFE * (t_k - t_{k-1}) / (t_K - t_0)) nodes per interval, at most ``max_nodes``.

    >>> import torch, quadjoint as qj
    >>> span = qj.Span(start=0.0, end=0.5, total=1.0, forward_evaluations=40, order=5)
    >>> len(qj.Heuristic(c=0.1).nodes(span))
    2
    """

    c: float = 0.1
    max_nodes: int = 64
    per = "interval"

    def __post_init__(self) -> None:
        if not self.c > 0:
            raise ValueError(f"Heuristic needs c > 0; got {self.c}.")
        if self.max_nodes < 1:
            raise ValueError(f"Heuristic needs max_nodes >= 1; got {self.max_nodes}.")

    def count(self, span: Span) -> int:
        n = math.ceil(self.c * span.forward_evaluations * abs(span.end - span.start) / span.total)
        return max(1, min(n, self.max_nodes))

    def nodes(self, span: Span) -> list[tuple[float, float]]:
        return on_interval(gauss_legendre(self.count(span)), span.start, span.end)


@dataclass(frozen=True)
class PerStep:
    """``q`` Gauss-Legendre nodes in every accepted step of the backward solve; by default as many as its order needs.

    q nodes are exact to degree 2q - 1; the integrand is known to the order p of the solver, so q = ceil((p + 1) / 2).

    >>> import torch, quadjoint as qj
    >>> span = qj.Span(start=0.0, end=1.0, total=1.0, forward_evaluations=40, order=5)
    >>> round(sum(weight * t**4 for t, weight in qj.PerStep(3).nodes(span)), 12)  # the integral of t^4
    0.2
    """

    q: int | None = None
    per = "step"

    def __post_init__(self) -> None:
        if self.q is not None and self.q < 1:
            raise ValueError(f"PerStep needs q >= 1; got {self.q}.")

    def nodes(self, span: Span) -> list[tuple[float, float]]:
        q = self.q or math.ceil((span.order + 1) / 2)
        return on_interval(gauss_legendre(q), span.start, span.end)
