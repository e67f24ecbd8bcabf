"""Neural SDEs: trained as random ODEs by the Wong-Zakai theorem, evaluated as SDEs with the same weights."""

from quadjoint.sde.neural_sde import NeuralSDE
from quadjoint.sde.noise import KarhunenLoeve, LegendrePolynomials, WienerPath
from quadjoint.sde.transfer import sdeint
from quadjoint.sde.wong_zakai import RandomODE, WongZakai

__all__ = [
    "KarhunenLoeve",
    "LegendrePolynomials",
    "NeuralSDE",
    "RandomODE",
    "WienerPath",
    "WongZakai",
    "sdeint",
]
