"""The DETEST problems, classes A to E (Hull, Enright, Fellen, Sedgwick 1972), against SciPy's DOP853.

Twenty-five nonstiff problems on 0 <= t <= 20: single equations, small systems, moderate systems, orbits, and equations
of higher order. Numbers of the problems are those of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

import quadjoint as qj

Field = Callable[[Tensor, Tensor], Tensor]


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def a5(t: Tensor, y: Tensor) -> Tensor:
    return (y - t) / (y + t)


def b1(t: Tensor, y: Tensor) -> Tensor:
    """Two conflicting populations."""
    return torch.stack([2 * (y[0] - y[0] * y[1]), -(y[1] - y[0] * y[1])])


def b3(t: Tensor, y: Tensor) -> Tensor:
    """A nonlinear chemical reaction."""
    return torch.stack([-y[0], y[0] - y[1] ** 2, y[1] ** 2])


def b4(t: Tensor, y: Tensor) -> Tensor:
    """The integral surface of a torus."""
    r = torch.hypot(y[0], y[1])
    return torch.stack([-y[1] - y[0] * y[2] / r, y[0] - y[1] * y[2] / r, y[0] / r])


def b5(t: Tensor, y: Tensor) -> Tensor:
    """A rigid body without external forces."""
    return torch.stack([y[1] * y[2], -y[0] * y[2], -0.51 * y[0] * y[1]])


def linear(matrix: np.ndarray) -> Field:
    a = torch.tensor(matrix, dtype=torch.float64)
    return lambda t, y: a @ y


def chain(rates: np.ndarray) -> Field:
    """Radioactive decay from each substance to the next, the last one stable."""
    out = np.append(rates, 0.0)
    return linear(np.diag(rates, -1) - np.diag(out))


def heat(n: int) -> Field:
    """The heat equation, discretised in space."""
    return linear(np.diag(np.ones(n - 1), -1) + np.diag(np.ones(n - 1), 1) - 2 * np.eye(n))


MASSES = vector(0.954786104043e-3, 0.285583733151e-3, 0.437273164546e-4, 0.517759138449e-4, 0.277777777778e-5)


def c5(t: Tensor, y: Tensor) -> Tensor:
    """Motion of the five outer planets about the sun."""
    x, v = y.reshape(2, 5, 3)
    pull = x / x.norm(dim=1, keepdim=True) ** 3
    apart = x[None] - x[:, None]  # [j, k] from planet j to planet k
    cubed = (apart.square().sum(-1) + torch.eye(5, dtype=y.dtype)) ** 1.5
    others = MASSES[None, :, None] * (apart / cubed[..., None] - pull[None])
    others = others * (1 - torch.eye(5, dtype=y.dtype))[..., None]
    force = -(1.00000597682 + MASSES[:, None]) * pull + others.sum(1)
    return torch.cat([v.reshape(-1), 2.95912208286 * force.reshape(-1)])


PLANETS = vector(
    3.42947415189,
    3.35386959711,
    1.35494901715,
    6.64145542550,
    5.97156957878,
    2.18231499728,
    11.2630437207,
    14.6952576794,
    6.27960525067,
    -30.1552268759,
    1.65699966404,
    1.43785752721,
    -21.1238353380,
    28.4465098142,
    15.3882659679,
    -0.557160570446,
    0.505696783289,
    0.230578543901,
    -0.415570776342,
    0.365682722812,
    0.169143213293,
    -0.325325669158,
    0.189706021964,
    0.0877265322780,
    -0.0240476254170,
    -0.287659532608,
    -0.117219543175,
    -0.176860753121,
    -0.216393453025,
    -0.0148647893090,
)


def orbit(t: Tensor, y: Tensor) -> Tensor:
    """Two bodies."""
    return torch.cat([y[2:], -y[:2] / y[:2].norm() ** 3])


def second_order(acceleration: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Field:
    return lambda t, y: torch.stack([y[1], acceleration(t, y[0], y[1])])


def unit(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)[0]


def start_of_orbit(e: float) -> Tensor:
    return vector(1 - e, 0.0, 0.0, math.sqrt((1 + e) / (1 - e)))


PROBLEMS: dict[str, tuple[Field, Tensor]] = {
    "A1": (lambda t, y: -y, vector(1.0)),
    "A2": (lambda t, y: -(y**3) / 2, vector(1.0)),
    "A3": (lambda t, y: y * torch.cos(t), vector(1.0)),
    "A4": (lambda t, y: y / 4 * (1 - y / 20), vector(1.0)),
    "A5": (a5, vector(4.0)),
    "B1": (b1, vector(1.0, 3.0)),
    "B2": (linear(np.array([[-1.0, 1, 0], [1, -2, 1], [0, 1, -1]])), vector(2.0, 0.0, 1.0)),
    "B3": (b3, vector(1.0, 0.0, 0.0)),
    "B4": (b4, vector(3.0, 0.0, 0.0)),
    "B5": (b5, vector(0.0, 1.0, 1.0)),
    "C1": (chain(np.ones(9)), unit(10)),
    "C2": (chain(np.arange(1.0, 10.0)), unit(10)),
    "C3": (heat(10), unit(10)),
    "C4": (heat(51), unit(51)),
    "C5": (c5, PLANETS),
    **{f"D{i}": (orbit, start_of_orbit(e)) for i, e in enumerate((0.1, 0.3, 0.5, 0.7, 0.9), start=1)},
    "E1": (
        second_order(lambda t, x, v: -(v / (t + 1) + (1 - 0.25 / (t + 1) ** 2) * x)),
        vector(0.6713967071418030, 0.09540051444747446),
    ),
    "E2": (second_order(lambda t, x, v: (1 - x**2) * v - x), vector(2.0, 0.0)),
    "E3": (second_order(lambda t, x, v: x**3 / 6 - x + 2 * torch.sin(2.78535 * t)), vector(0.0, 0.0)),
    "E4": (second_order(lambda t, x, v: 0.032 - 0.4 * v**2), vector(30.0, 0.0)),
    "E5": (second_order(lambda t, x, v: torch.sqrt(1 + v**2) / (25 - t)), vector(0.0, 0.0)),
}
TIMES = torch.linspace(0, 20, 9, dtype=torch.float64)

# An error in the energy of an orbit changes its period and so grows along the orbit, most for the most eccentric one.
SENSITIVE = {"C5": 3.0, "D1": 20.0, "D2": 20.0, "D3": 20.0, "D4": 20.0, "D5": 100.0}


@cache
def reference(name: str) -> Tensor:
    f, y0 = PROBLEMS[name]

    def numpy_f(t: float, y: np.ndarray) -> np.ndarray:
        return f(torch.tensor(t, dtype=torch.float64), torch.as_tensor(y)).numpy()

    out = solve_ivp(numpy_f, (0.0, 20.0), y0.numpy(), "DOP853", TIMES.numpy(), rtol=1e-12, atol=1e-12)
    assert out.success
    return torch.as_tensor(out.y.T.copy())


def relative_error(name: str, method: str, tol: float) -> float:
    f, y0 = PROBLEMS[name]
    with torch.no_grad():
        ys = qj.odeint(f, y0, TIMES, method=method, rtol=tol, atol=tol)
    exact = reference(name)
    return float(((ys - exact).abs() / (1 + exact.abs())).max())


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize(("method", "tol"), [("dopri5", 1e-6), ("tsit5", 1e-6), ("dopri8", 1e-10)])
def test_detest(name: str, method: str, tol: float) -> None:
    assert relative_error(name, method, tol) < 100 * SENSITIVE.get(name, 1.0) * tol


def test_reference_solves_bessels_equation() -> None:
    """E1 is Bessel's equation of order one half in t + 1, whose solution is elementary."""
    x = TIMES + 1
    exact = torch.sqrt(2 / (math.pi * x)) * torch.sin(x)
    assert float((reference("E1")[:, 0] - exact).abs().max()) < 1e-10
