"""Gradient methods by name."""

from __future__ import annotations

from quadjoint.errors import nearest
from quadjoint.gradient.base import Gradient
from quadjoint.gradient.choose.auto import Auto
from quadjoint.gradient.continuous.sweep import Adjoint, ContinuousAdjoint, GaussLegendre, Seminorm
from quadjoint.gradient.continuous.trajectory import Backsolve, Stored
from quadjoint.gradient.direct import Direct
from quadjoint.gradient.discrete.adjoint import DiscreteAdjoint
from quadjoint.gradient.quadrature import Heuristic
from quadjoint.gradient.reversible import Reversible

GRADIENTS: dict[str, Gradient] = {
    "auto": Auto(),
    "direct": Direct(),
    "discrete": DiscreteAdjoint(),
    "gq": GaussLegendre(),
    "gq-paper": GaussLegendre(nodes=Heuristic(), trajectory=Backsolve(), normalise=False, name="gq-paper"),
    "adjoint": Adjoint(),
    "seminorm": Seminorm(),
    "reversible": Reversible(),
}


def resolve(gradient: str | Gradient) -> Gradient:
    """A gradient method from its name, or itself."""
    if isinstance(gradient, Gradient):
        return gradient
    if not isinstance(gradient, str):
        raise TypeError(f"gradient must be a name or a gradient object; got {type(gradient).__name__}.")
    if gradient not in GRADIENTS:
        raise ValueError(f"gradient = {gradient!r} is not known.{nearest(gradient, GRADIENTS)}")
    return GRADIENTS[gradient]


__all__ = ["GRADIENTS", "Adjoint", "Auto", "Backsolve", "ContinuousAdjoint", "Direct", "DiscreteAdjoint",
           "GaussLegendre", "Gradient", "Reversible", "Seminorm", "Stored", "resolve"]  # fmt: skip
