"""Gauss-Legendre collocation on the unit interval.

With the Lagrange basis l_j on the nodes c_i: b_j(s) = int_0^s l_j, b_j = b_j(1), a_ij = b_j(c_i).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial import legendre

from quadjoint.quadrature import gauss_legendre


@dataclass(frozen=True, eq=False)
class CollocationRule:
    """q Gauss nodes in (0, 1), with everything in float64.

    >>> rule = collocation_rule(2)
    >>> bool(np.allclose(rule.a.sum(1), rule.c)), bool(np.allclose(rule.integrals([1.0])[0], rule.b))
    (True, True)
    """

    c: np.ndarray  # (q,)
    b: np.ndarray  # (q,)
    a: np.ndarray  # (q, q)
    coefficients: np.ndarray  # (q, q): values at the nodes to coefficients of Legendre polynomials, by degree

    @property
    def q(self) -> int:
        return len(self.c)

    def basis(self, s: np.ndarray) -> np.ndarray:
        """l_j(s), shape (len(s), q); outside of [0, 1] they extrapolate."""
        return legendre.legvander(2.0 * np.asarray(s) - 1.0, self.q - 1) @ self.coefficients

    def integrals(self, s: np.ndarray | list[float]) -> np.ndarray:
        """b_j(s), shape (len(s), q)."""
        x = 2.0 * np.asarray(s) - 1.0
        p = legendre.legvander(x, self.q)
        # int_{-1}^x P_n = (P_{n+1} - P_{n-1}) / (2 n + 1), and x + 1 for n = 0.
        degrees = np.arange(1, self.q)
        higher = (p[:, 2:] - p[:, :-2]) / (2 * degrees + 1) if self.q > 1 else p[:, :0]
        return 0.5 * np.hstack([(x + 1.0)[:, None], higher]) @ self.coefficients


@lru_cache(maxsize=32)
def collocation_rule(q: int) -> CollocationRule:
    """The rule with q nodes; of order 2q at the ends of a step."""
    x, w = gauss_legendre(q)
    coefficients = (np.arange(q) + 0.5)[:, None] * legendre.legvander(x, q - 1).T * w
    rule = CollocationRule(0.5 * (x + 1.0), 0.5 * w, np.empty(0), coefficients)
    return CollocationRule(rule.c, rule.b, rule.integrals(rule.c), coefficients)
