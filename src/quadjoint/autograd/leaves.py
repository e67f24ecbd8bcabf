"""Walks through autograd's graph: which leaves are behind a result, and which of them nobody has named."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

Edge = tuple[Any, int]  # a node of the graph and which of its outputs


def upstream(*outs: Tensor) -> Iterator[Any]:
    """The nodes of the graphs of ``outs``, each once, their own first."""
    seen: set[Any] = set()
    stack = [out.grad_fn for out in outs]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            stack.extend(parent for parent, _ in node.next_functions)


def leaves(*outs: Tensor) -> list[Tensor]:
    """Leaf tensors that require grad in the graphs of ``outs`` (or are one of them), in a fixed order."""
    return Frontier(()).explore(*outs)[1]


def are_referenced(tensors: Sequence[Tensor]) -> bool:
    """Whether Python holds each of them elsewhere, so that none lives by the graph alone that it was found in."""
    return not tensors or _fewest_references(tensors) > _references_from_a_graph()


def _fewest_references(tensors: Sequence[Tensor]) -> int:
    return min(sys.getrefcount(x) for x in tensors)


@lru_cache(maxsize=1)
def _references_from_a_graph() -> int:
    """References to a leaf that nothing but a graph holds, counted as ``are_referenced`` counts them."""
    with torch.inference_mode(False), torch.enable_grad():
        out = torch.zeros((), requires_grad=True) * 2.0
        return _fewest_references(leaves(out))


class Frontier:
    """Tensors at which a walk stops: parameters, and the state."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = list(tensors)  # kept alive, as the identity of something freed may be used again
        self.leaves = {id(x) for x in self.tensors if x.grad_fn is None}
        self.edges: dict[Edge, Tensor] = {(x.grad_fn, x.output_nr): x for x in self.tensors if x.grad_fn is not None}

    def explore(self, *outs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Tensors of the frontier that ``outs`` depend on, and leaves requiring grad that are reached past it."""
        met: dict[int, Tensor] = {}
        beyond: dict[int, Tensor] = {}
        seen: set[Any] = set()
        stack: list[Edge] = []
        for out in outs:
            if out.grad_fn is not None:
                stack.append((out.grad_fn, out.output_nr))
            elif out.requires_grad:
                (met if id(out) in self.leaves else beyond)[id(out)] = out
        while stack:
            edge = stack.pop()
            node = edge[0]
            if edge in self.edges:
                x = self.edges[edge]
                met[id(x)] = x
            elif node is not None and node not in seen:
                seen.add(node)
                stack.extend(node.next_functions)
                variable = getattr(node, "variable", None)
                if variable is not None:
                    (met if id(variable) in self.leaves else beyond)[id(variable)] = variable
        return list(met.values()), list(beyond.values())

    def strangers(self, out: Tensor, inputs: Sequence[Tensor] = ()) -> list[Tensor]:
        """Leaves requiring grad, none of ``inputs``, that ``out`` depends on and that are not behind the frontier."""
        return [x for x in self.explore(out)[1] if not any(x is y for y in inputs)]


def separate(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, or the leaves behind them if one is computed from another.

    A gradient in each of the result, passed on by autograd to what it was computed from, then counts nothing twice.
    """
    everything = {id(x) for x in tensors}
    made = {x.grad_fn for x in tensors if x.grad_fn is not None}
    for x in tensors:
        for node in upstream(x):
            if node is not x.grad_fn and (node in made or id(getattr(node, "variable", None)) in everything):
                return leaves(*tensors)
    return list(tensors)
