"""Gradients through implicit steps: exact, agreeing with each other, and right on stiff problems."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj

IMPLICIT = [name for name, tableau in qj.TABLEAUS.items() if not tableau.explicit and not name.startswith("my_")]
DTYPE = torch.float64


class Coupled(torch.nn.Module):
    """A small stiff network of every sample: a fast linear part and a slow nonlinear one, and the time."""

    def __init__(self, d: int = 3) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w = torch.nn.Parameter(torch.randn(d, d, generator=generator, dtype=DTYPE) * 0.5)
        self.rates = torch.nn.Parameter(torch.linspace(0.5, 30.0, d, dtype=DTYPE))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(y @ self.w) - self.rates * y + torch.cos(2.0 * t)


def gradients(gradient: Any, name: str, *, t: Tensor | None = None, **settings: Any) -> list[Tensor]:
    f = Coupled()
    y0 = torch.linspace(-1.0, 1.0, 6, dtype=DTYPE).reshape(2, 3).requires_grad_()
    t = torch.tensor([0.0, 0.33, 0.7, 1.0], dtype=DTYPE) if t is None else t
    ys = qj.odeint(f, y0, t, method=name, gradient=gradient, **settings)
    loss = (ys * torch.cos(torch.arange(ys.numel(), dtype=DTYPE)).reshape(ys.shape)).sum()
    return list(torch.autograd.grad(loss, (y0, *f.parameters())))


def distance(xs: list[Tensor], ys: list[Tensor]) -> float:
    return max(float((x - y).norm() / y.norm()) for x, y in zip(xs, ys, strict=True))


@pytest.mark.parametrize("name", IMPLICIT)
def test_direct_and_discrete_are_the_same_gradient(name: str) -> None:
    """On a grid, with observations inside of its steps, whatever is stored and whatever is computed again."""
    grid = {"options": {"step_size": 0.13}}
    direct = gradients("direct", name, **grid)
    for method in (
        qj.DiscreteAdjoint(),
        qj.DiscreteAdjoint(keep="states"),
        qj.DiscreteAdjoint(max_states=2),
        qj.DiscreteAdjoint(activations=0),
    ):
        assert distance(gradients(method, name, **grid), direct) < 1e-9


@pytest.mark.parametrize("name", ["trbdf2", "kvaerno3", "kvaerno5", "radauIIA5"])
def test_direct_and_discrete_are_the_same_gradient_on_adaptive_steps(name: str) -> None:
    """Stages are found to a part of the tolerance; the transposes at what was found agree all the same."""
    t = torch.tensor([0.0, 0.33, 0.7, 1.0], dtype=DTYPE)
    for times in (t, 1.0 - t):
        direct = gradients("direct", name, t=times, rtol=1e-5, atol=1e-7)
        assert distance(gradients("discrete", name, t=times, rtol=1e-5, atol=1e-7), direct) < 1e-9


@pytest.mark.parametrize("name", IMPLICIT)
def test_gradients_are_those_of_the_discretised_solve(name: str) -> None:
    """Central differences of a solve whose stages are found to rounding, in the direction of all parameters."""
    f = Coupled()
    t = torch.tensor([0.0, 0.4, 1.0], dtype=DTYPE)
    y0 = torch.linspace(-1.0, 1.0, 6, dtype=DTYPE).reshape(2, 3)
    directions = [torch.sin(torch.arange(p.numel(), dtype=DTYPE) + 1.0).reshape(p.shape) for p in f.parameters()]

    def loss() -> Tensor:
        return qj.odeint(f, y0, t, method=name, options={"step_size": 0.2}, gradient="discrete").square().sum()

    found = torch.autograd.grad(loss(), list(f.parameters()))
    slope = sum(float((g * d).sum()) for g, d in zip(found, directions, strict=True))
    eps, values = 1e-4, []
    for sign in (-2.0, -1.0, 1.0, 2.0):
        for p, d in zip(f.parameters(), directions, strict=True):
            p.data.add_(d, alpha=sign * eps)
        with torch.no_grad():
            values.append(float(loss()))
        for p, d in zip(f.parameters(), directions, strict=True):
            p.data.sub_(d, alpha=sign * eps)
    difference = (values[0] - 8.0 * values[1] + 8.0 * values[2] - values[3]) / (12.0 * eps)
    assert slope == pytest.approx(difference, rel=1e-7)


@pytest.mark.parametrize("gradient", ["gq", "gq-paper", "adjoint", "seminorm"])
@pytest.mark.parametrize("name", ["kvaerno5", "radauIIA5"])
def test_continuous_gradients_agree_to_the_tolerance(name: str, gradient: str) -> None:
    exact = gradients("discrete", name, rtol=1e-9, atol=1e-11)
    assert distance(gradients(gradient, name, rtol=1e-7, atol=1e-9), exact) < 2e-4


@pytest.mark.parametrize("name", ["kvaerno3", "radauIIA3"])
def test_a_large_state_is_differentiated_without_its_jacobian(name: str) -> None:
    """300 numbers that all depend on each other: Krylov methods forwards and backwards."""
    n = 300
    y0 = torch.cos(torch.arange(n, dtype=DTYPE)).requires_grad_()
    k = torch.tensor(50.0, dtype=DTYPE, requires_grad=True)
    t = torch.tensor([0.0, 0.1], dtype=DTYPE)

    def f(t: Tensor, y: Tensor) -> Tensor:
        return k * (torch.roll(y, 1) - 2.0 * y + torch.roll(y, -1)) - y**3

    found = []
    for gradient in ("direct", "discrete"):
        y = qj.odeint(f, y0, t, method=name, options={"step_size": 0.05}, gradient=gradient)[-1]
        found.append(torch.autograd.grad(y.square().sum(), (y0, k)))
    assert distance(list(found[0]), list(found[1])) < 1e-9


def test_second_derivatives() -> None:
    """Those of direct are exact; discrete refuses them in words."""
    w = torch.tensor(0.7, dtype=DTYPE, requires_grad=True)
    t = torch.tensor([0.0, 1.0], dtype=DTYPE)

    def end(w: Tensor, gradient: str) -> Tensor:
        y0 = torch.ones(1, dtype=DTYPE)
        return qj.odeint(lambda t, y: -w * y, y0, t, method="gl6", options={"step_size": 0.1}, gradient=gradient)[-1, 0]

    (first,) = torch.autograd.grad(end(w, "direct"), w, create_graph=True)
    (second,) = torch.autograd.grad(first, w)
    assert float(first) == pytest.approx(-float(torch.exp(-w)), rel=1e-8)
    assert float(second) == pytest.approx(float(torch.exp(-w)), rel=1e-8)
    with pytest.raises(RuntimeError, match="direct"):
        torch.autograd.grad(torch.autograd.grad(end(w, "discrete"), w, create_graph=True)[0], w)
