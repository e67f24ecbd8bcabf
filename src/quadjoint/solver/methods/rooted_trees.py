"""Rooted trees and the elementary weights of a Runge-Kutta method.

Butcher's theory (Hairer, Norsett and Wanner, Solving ODEs I, II.2): a method has order p exactly when
sum_i b_i Phi_i(t) = 1 / gamma(t) for every rooted tree t with at most p vertices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np


@dataclass(frozen=True, eq=False)
class RootedTrees:
    """All rooted trees with at most `order` vertices, smallest first.

    Every tree but the single vertex is one smaller tree `left` with another, `right`, grafted to its
    root as a further child. `slices[r - 1]` is the range of the trees with r vertices.
    """

    vertices: np.ndarray  # (n,) rho(t)
    density: np.ndarray  # (n,) gamma(t)
    left: np.ndarray  # (n,) index of the tree without its last branch; 0 for the single vertex
    right: np.ndarray  # (n,) index of the last branch; 0 for the single vertex
    slices: tuple[slice, ...]

    def __len__(self) -> int:
        return len(self.vertices)

    def count(self, order: int) -> int:
        """How many of the trees have at most `order` vertices; they come first."""
        return self.slices[order - 1].stop

    def elementary_weights(self, a: np.ndarray) -> np.ndarray:
        """Phi_i(t) for every stage i and tree t, shape (stages, trees), of the method with matrix `a`.

        With t = left + [right]: Phi(t) = Phi(left) * (a Phi(right)), all trees of one size at once.
        """
        phi = np.ones((len(a), len(self)))
        branches = np.empty_like(phi)  # a Phi(t)
        for of_size in self.slices:
            if of_size.start > 0:
                phi[:, of_size] = phi[:, self.left[of_size]] * branches[:, self.right[of_size]]
            branches[:, of_size] = a @ phi[:, of_size]
        return phi


@cache
def rooted_trees(order: int) -> RootedTrees:
    """The rooted trees with at most `order` vertices: 1, 2, 4, 8, 17, 37, 85, 200 for orders 1 to 8.

    A branch is grafted only if it comes no earlier in the list than the branches already there, so that
    every tree appears once.
    """
    if order < 1:
        raise ValueError(f"order must be at least 1, got {order}")
    vertices, density, left, right = [1], [1], [0], [0]
    slices = [slice(0, 1)]
    for size in range(2, order + 1):
        start = len(vertices)
        for u in range(start):
            for v in range(slices[size - vertices[u] - 1].start, slices[size - vertices[u] - 1].stop):
                if u == 0 or v >= right[u]:
                    vertices.append(size)
                    density.append(size * (density[u] // vertices[u]) * density[v])
                    left.append(u)
                    right.append(v)
        slices.append(slice(start, len(vertices)))
    return RootedTrees(
        vertices=np.array(vertices),
        density=np.array(density),
        left=np.array(left),
        right=np.array(right),
        slices=tuple(slices),
    )
