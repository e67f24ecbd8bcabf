"""Stiff problems in batches, written once for torch, jax and numpy.

``f(xp, y, p)`` takes the module whose arrays y and p are; states have the components in their last dimension. The loss
is the sum of the states at the end, weighted, so that the gradient of every sample is its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

SPREAD = 0.3  # standard deviation of the logarithms of rates
WIDTH, DIMENSION = 32, 8


@dataclass(frozen=True)
class StiffProblem:
    name: str
    f: Callable[[Any, Any, tuple[Any, ...]], Any]
    jacobian: Callable[[np.ndarray, tuple[np.ndarray, ...]], np.ndarray]  # of one sample, for SciPy
    draw: Callable[[int, np.random.Generator], tuple[np.ndarray, tuple[np.ndarray, ...]]]  # y0 (B, d), and p
    end: float
    weights: tuple[float, ...]
    own_parameters: bool = True  # p has a first dimension for the samples

    def parameters_of(self, p: tuple[Any, ...], i: int) -> tuple[Any, ...]:
        return tuple(x[i] for x in p) if self.own_parameters else p

    def rows(self, p: tuple[Any, ...], rows: slice) -> tuple[Any, ...]:
        return tuple(x[rows] for x in p) if self.own_parameters else p


def _robertson(xp: Any, y: Any, p: tuple[Any, ...]) -> Any:
    a, b, c = y[..., 0], y[..., 1], y[..., 2]
    k = xp.exp(p[0])
    first, second, third = k[..., 0] * a, k[..., 1] * b * b, k[..., 2] * b * c
    return xp.stack([third - first, first - second - third, second], -1)


def _robertson_jacobian(y: np.ndarray, p: tuple[np.ndarray, ...]) -> np.ndarray:
    (_, b, c), (k1, k2, k3) = y, np.exp(p[0])
    return np.array([[-k1, k3 * c, k3 * b], [k1, -2.0 * k2 * b - k3 * c, -k3 * b], [0.0, 2.0 * k2 * b, 0.0]])


def _draw_robertson(batch: int, generator: np.random.Generator) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    rates = np.log([0.04, 3e7, 1e4]) + SPREAD * generator.standard_normal((batch, 3))
    return np.tile([1.0, 0.0, 0.0], (batch, 1)), (rates,)


def _van_der_pol(xp: Any, y: Any, p: tuple[Any, ...]) -> Any:
    x, v = y[..., 0], y[..., 1]
    return xp.stack([v, xp.exp(p[0]) * (1.0 - x * x) * v - x], -1)


def _van_der_pol_jacobian(y: np.ndarray, p: tuple[np.ndarray, ...]) -> np.ndarray:
    (x, v), mu = y, np.exp(p[0])
    return np.array([[0.0, 1.0], [-2.0 * mu * x * v - 1.0, mu * (1.0 - x * x)]])


def _draw_van_der_pol(batch: int, generator: np.random.Generator) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    return np.tile([2.0, 0.0], (batch, 1)), (np.log(1000.0) + SPREAD * generator.standard_normal(batch),)


DECAY = np.geomspace(1.0, 1e4, DIMENSION)


def _network(xp: Any, y: Any, p: tuple[Any, ...]) -> Any:
    w1, b1, w2, b2, decay = p
    return xp.tanh(y @ w1.T + b1) @ w2.T + b2 - decay * y


def _network_jacobian(y: np.ndarray, p: tuple[np.ndarray, ...]) -> np.ndarray:
    w1, b1, w2, _, decay = p
    return (w2 * (1.0 - np.tanh(w1 @ y + b1) ** 2)) @ w1 - np.diag(decay)


def _draw_network(batch: int, generator: np.random.Generator) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    normal = generator.standard_normal
    w1, b1 = normal((WIDTH, DIMENSION)) / np.sqrt(DIMENSION), normal(WIDTH)
    w2, b2 = 3.0 * normal((DIMENSION, WIDTH)) / np.sqrt(WIDTH), normal(DIMENSION)
    return normal((batch, DIMENSION)), (w1, b1, w2, b2, DECAY)


PROBLEMS = {
    problem.name: problem
    for problem in (
        StiffProblem("robertson", _robertson, _robertson_jacobian, _draw_robertson, 1e4, (1.0, 1e4, 2.0)),
        StiffProblem("van_der_pol", _van_der_pol, _van_der_pol_jacobian, _draw_van_der_pol, 2000.0, (1.0, 100.0)),
        StiffProblem("network", _network, _network_jacobian, _draw_network, 2.0, (1.0,) * DIMENSION, False),
    )
}


def draw(name: str, batch: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """The same problems for every library and every run; those of a smaller batch are the first ones of a larger."""
    generator = np.random.default_rng(0)
    problem = PROBLEMS[name]
    y0, p = problem.draw(max(batch, 100), generator)
    return y0[:batch], problem.rows(p, slice(0, batch))
