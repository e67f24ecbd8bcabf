"""Continuous extensions of one order more, for observations as accurate as the ends of steps.

Two stages are added at points where the old extension gives the state, as in the bootstrap of Enright, Jackson, Norsett
and Thomsen (ACM Trans. Math. Softw. 12, 1986). The new polynomial has the derivatives of the solution at both ends and
at these two points, and ends in y1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quadjoint.solver.methods.tableau import ButcherTableau

# Where the stages are added, chosen for small errors of order six. The pair must not be that of Lobatto's rule,
# (0.28, 0.72), whose integral knows y1 already.
POINTS = (0.5, 0.8)


def refinable(tableau: ButcherTableau) -> bool:
    """Whether the method has a quartic from its own stages."""
    return tableau.explicit and tableau.fsal and not tableau.extra_stages and tableau.dense_order == 4


def refine_extension(tableau: ButcherTableau) -> ButcherTableau:
    """The same method with two more stages and a quintic instead of a quartic.

    >>> import quadjoint as qj
    >>> refine_extension(qj.TABLEAUS["dopri5"]).dense_order
    5
    """
    if not refinable(tableau):
        raise ValueError(f"{tableau.name} has no quartic from its own stages that could be refined.")
    s = tableau.stages
    a_extra = np.zeros((2, s + 2))
    a_extra[:, :s] = tableau.dense_weights(POINTS)
    # Coefficients of theta ... theta^5 from the value at 1 and the derivatives at 0, 1 and the two points.
    degrees = np.arange(1, 6)
    slopes = np.stack([degrees * x ** (degrees - 1.0) for x in (0.0, 1.0, *POINTS)])
    conditions = np.vstack([np.ones(5), slopes])
    given = np.zeros((5, s + 2))
    given[0, :s] = tableau.b
    given[[1, 2, 3, 4], [0, s - 1, s, s + 1]] = 1.0
    return replace(
        tableau,
        c_extra=np.array(POINTS),
        a_extra=a_extra,
        dense=np.linalg.solve(conditions, given).T,
        dense_order=5,
        reference=f"{tableau.reference}; extension: Enright et al. (1986)",
    )
