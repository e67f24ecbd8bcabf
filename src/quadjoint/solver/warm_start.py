"""First step sizes that are remembered from one solve to the next."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from quadjoint.solver.dynamics import kept_for
from quadjoint.solver.problem import Problem

SEARCH = 1  # evaluations of the search; its other one is the first stage of the first step

# First step sizes found by search, per function and setting: a repeated solve skips it and takes the same steps.
_first_steps: weakref.WeakKeyDictionary[Any, dict[Any, float]] = weakref.WeakKeyDictionary()


class WarmStart:
    """Remember the searched first step size of a function for the next solve of the same kind.

    The remembered size is the one that the search gave, so a repeated solve takes the same steps; it is forgotten
    where the first step was rejected.
    """

    def __init__(self, problem: Problem, f: Callable[..., Any], options: dict[str, Any]) -> None:
        self.problem, self.known = problem, kept_for(_first_steps, f)
        solver = problem.solver
        self.on = solver.grid is None and solver.method != "scipy_solver"
        self.on = self.on and options.get("warm_start", True) and solver.settings.first_step is None
        self.key = problem.kind, problem.f.shape, problem.f.dtype

    def __enter__(self) -> None:
        h = self.known.get(self.key) if self.on else None
        if h is not None:
            self.problem.solver = self.problem.solver.starting_with(h)
            self.problem.saved_evaluations = SEARCH

    def __exit__(self, kind: Any, *_: Any) -> None:
        if not self.on:
            return
        if kind is None and self.problem.first_h is not None:
            self.known[self.key] = self.problem.first_h
        else:
            self.known.pop(self.key, None)
