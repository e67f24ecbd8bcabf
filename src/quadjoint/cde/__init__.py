"""Neural controlled differential equations (Kidger et al. 2020): dz = f(z) dX along a path X through data.

Names, arguments and shapes are torchcde's, so that a program for it runs with ``import quadjoint.cde as torchcde``.
"""

from quadjoint.cde.from_data import interpolate
from quadjoint.cde.layer import MatrixMLP, NeuralCDE
from quadjoint.cde.path_coefficients import (
    hermite_cubic_coefficients_with_backward_differences,
    linear_interpolation_coeffs,
    natural_cubic_coeffs,
    natural_cubic_spline_coeffs,
)
from quadjoint.cde.paths import InterpolationBase
from quadjoint.cde.solve import Controlled, cdeint
from quadjoint.cde.splines import CubicSpline, LinearInterpolation, TupleControl

__all__ = [
    "Controlled",
    "CubicSpline",
    "InterpolationBase",
    "LinearInterpolation",
    "MatrixMLP",
    "NeuralCDE",
    "TupleControl",
    "cdeint",
    "hermite_cubic_coefficients_with_backward_differences",
    "interpolate",
    "linear_interpolation_coeffs",
    "natural_cubic_coeffs",
    "natural_cubic_spline_coeffs",
]
