"""Neural controlled differential equations (Kidger et al. 2020): dz = f(z) dX along a path X through data.

Names, arguments and shapes are torchcde's, so that a program for it runs with ``import quadjoint.cde as torchcde``.
"""

from quadjoint.cde.coefficients import (
    hermite_cubic_coefficients_with_backward_differences,
    linear_interpolation_coeffs,
    natural_cubic_coeffs,
    natural_cubic_spline_coeffs,
)
from quadjoint.cde.data import interpolate
from quadjoint.cde.paths import CubicSpline, InterpolationBase, LinearInterpolation, TupleControl
from quadjoint.cde.solve import Controlled, cdeint

__all__ = [
    "Controlled",
    "CubicSpline",
    "InterpolationBase",
    "LinearInterpolation",
    "TupleControl",
    "cdeint",
    "hermite_cubic_coefficients_with_backward_differences",
    "interpolate",
    "linear_interpolation_coeffs",
    "natural_cubic_coeffs",
    "natural_cubic_spline_coeffs",
]
