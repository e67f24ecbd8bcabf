"""Gradient methods by name."""

from __future__ import annotations

from quadjoint.errors import nearest
from quadjoint.gradient.base import Gradient
from quadjoint.gradient.choose.auto import Auto
from quadjoint.gradient.collocation.gauss_legendre import GaussLegendre
from quadjoint.gradient.continuous.family import Adjoint, ContinuousAdjoint, QuadratureAdjoint, Seminorm
from quadjoint.gradient.direct import Direct
from quadjoint.gradient.discrete.discrete_adjoint import DiscreteAdjoint
from quadjoint.gradient.reversible import Reversible

GRADIENTS: dict[str, Gradient] = {
    "auto": Auto(),
    "direct": Direct(),
    "discrete": DiscreteAdjoint(),
    "gq": GaussLegendre(),
    "gq-paper": QuadratureAdjoint(),
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


__all__ = [
    "GRADIENTS",
    "Adjoint",
    "Auto",
    "ContinuousAdjoint",
    "Direct",
    "DiscreteAdjoint",
    "GaussLegendre",
    "Gradient",
    "QuadratureAdjoint",
    "Reversible",
    "Seminorm",
    "resolve",
]
