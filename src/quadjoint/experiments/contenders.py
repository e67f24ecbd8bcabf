"""The names of the compared methods, and what each hands to the solver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

import quadjoint as qj
from quadjoint.experiments import authors
from quadjoint.nn import NeuralODE


@dataclass(frozen=True)
class Scheme:
    """A gradient method together with the forward solver it needs."""

    gradient: Any
    method: str = "dopri5"

    def settings(self, tolerance: float) -> dict[str, Any]:
        """What the solver is given."""
        return {"gradient": self.gradient, "method": self.method, "rtol": tolerance, "atol": tolerance}


def scheme(name: str, *, c: float = 0.1) -> Scheme:
    """The scheme of a method's name; c is the paper's constant C, of use to ``gq-paper`` alone.

    ACA (Zhuang et al. 2020) keeps the accepted states and replays each step: the discrete adjoint with
    ``keep="states"``. MALI (Zhuang et al. 2021) is the reversible asynchronous leapfrog.
    """
    if name == "aca":
        return Scheme(qj.DiscreteAdjoint(keep="states"))
    if name == "mali":
        return Scheme("reversible", method="alf")
    if name == "gq-paper":
        return Scheme(qj.QuadratureAdjoint(qj.Heuristic(c=c, max_nodes=64)))
    return Scheme(name)


_lean: ContextVar[bool] = ContextVar("lean", default=False)


@contextmanager
def lean() -> Iterator[None]:
    """Within this, solves keep nothing that training does not need: no dense output, no statistics."""
    token = _lean.set(True)
    try:
        yield
    finally:
        _lean.reset(token)


def states(f: Any, y: Tensor, t: Tensor, **settings: Any) -> tuple[Tensor, Any]:
    """The states at times t and the statistics of the solve (None within `lean`)."""
    if settings["gradient"] in authors.METHODS:
        return authors.solve(f, y, t, method=settings["gradient"], tolerance=settings["rtol"])
    if _lean.get():
        return qj.odeint(f, y, t, **settings), None
    solution = qj.solve(f, y, t, **settings)
    return cast(Tensor, solution.ys), solution.stats


class CountedODE(NeuralODE):
    """A neural ODE that hands out the statistics of each solve beside its states."""

    def states(self, y: Tensor, t: Tensor | None = None) -> tuple[Tensor, Any]:
        return states(self.f, y, self.times() if t is None else t, **self.settings())


def neural_ode(f: Any, name: str, *, tolerance: float = 1e-3, c: float = 0.1) -> CountedODE:
    """The solve of an experiment by a method's name."""
    return CountedODE(f, **scheme(name, c=c).settings(tolerance))
