"""The names of the compared methods, and what each hands to the solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import quadjoint as qj
from quadjoint.nn import NeuralODE


@dataclass(frozen=True)
class Scheme:
    """A gradient method together with the forward solver it needs."""

    gradient: Any
    method: str = "dopri5"


def scheme(name: str, *, c: float = 0.1) -> Scheme:
    """The scheme of a method's name; c is the paper's constant C, of use to ``gq-paper`` alone.

    ACA (Zhuang et al. 2020) keeps the accepted states and replays each step: the discrete adjoint with
    ``keep="states"``. MALI (Zhuang et al. 2021) is the reversible asynchronous leapfrog.
    """
    if name == "aca":
        return Scheme(qj.DiscreteAdjoint(keep="states"))
    if name == "mali":
        return Scheme("reversible", method="alf")
    if name == "gq-paper" and c != 0.1:
        nodes = qj.Heuristic(c=c, max_nodes=64)
        return Scheme(qj.GaussLegendre(nodes=nodes, trajectory=qj.Backsolve()))
    return Scheme(name)


def neural_ode(f: Any, name: str, *, tolerance: float = 1e-3, c: float = 0.1) -> NeuralODE:
    """The solve of an experiment by a method's name.

    Every solve searches its own first step: a first step remembered from the solve before would make a resumed
    run differ from an uninterrupted one.
    """
    how = scheme(name, c=c)
    options = {"warm_start": False}
    return NeuralODE(f, method=how.method, gradient=how.gradient, rtol=tolerance, atol=tolerance, options=options)
