"""quadjoint: neural ODEs and SDEs in PyTorch, trained fast and in little memory."""

from __future__ import annotations

from typing import Any

from quadjoint.errors import QuadjointWarning, SolveError
from quadjoint.explain import Explanation, explain
from quadjoint.gradient import (
    GRADIENTS,
    Adjoint,
    Auto,
    ContinuousAdjoint,
    Direct,
    DiscreteAdjoint,
    GaussLegendre,
    Gradient,
    QuadratureAdjoint,
    Reversible,
    Seminorm,
)
from quadjoint.gradient.continuous.integral import InState, Quadrature
from quadjoint.ode import odeint, solve
from quadjoint.quadrature import Heuristic, NodePolicy, PerStep, Span, gauss_legendre
from quadjoint.solution import Solution
from quadjoint.solver.controllers import PIDController
from quadjoint.solver.independent.endings import Ending, Status
from quadjoint.solver.interpolation import HermiteStep
from quadjoint.solver.methods.catalogue import METHODS, register_method
from quadjoint.solver.methods.tableau import ButcherTableau
from quadjoint.solver.methods.tableaus import TABLEAUS
from quadjoint.solver.protocols import Controller, Step, Stepper
from quadjoint.solver.remembered import clear_cache
from quadjoint.solver.stats import Stats

__version__ = "0.2.0a1"

_LAZY = {"cde": "quadjoint.cde", "nn": "quadjoint.nn", "sde": "quadjoint.sde"}
_FROM_SDE = ("NeuralSDE", "WongZakai", "sdeint")


def __getattr__(name: str) -> Any:
    """Parts that most programs do not need are imported when they are first used."""
    import importlib

    if name in _LAZY:
        return importlib.import_module(_LAZY[name])
    if name in _FROM_SDE:
        return getattr(importlib.import_module("quadjoint.sde"), name)
    raise AttributeError(f"module 'quadjoint' has no attribute {name!r}")


__all__ = [
    "GRADIENTS",
    "METHODS",
    "TABLEAUS",
    "Adjoint",
    "Auto",
    "ButcherTableau",
    "ContinuousAdjoint",
    "Controller",
    "Direct",
    "DiscreteAdjoint",
    "Ending",
    "Explanation",
    "GaussLegendre",
    "Gradient",
    "HermiteStep",
    "Heuristic",
    "InState",
    "NeuralSDE",
    "NodePolicy",
    "PIDController",
    "PerStep",
    "QuadjointWarning",
    "Quadrature",
    "QuadratureAdjoint",
    "Reversible",
    "Seminorm",
    "Solution",
    "SolveError",
    "Span",
    "Stats",
    "Status",
    "Step",
    "Stepper",
    "WongZakai",
    "cde",
    "clear_cache",
    "explain",
    "gauss_legendre",
    "nn",
    "odeint",
    "register_method",
    "sde",
    "sdeint",
    "solve",
]
