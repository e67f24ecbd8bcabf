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


@pytest.mark.parametrize("name", IMPLICIT)
def test_gradients_of_grids_with_discontinuities(name: str) -> None:
    """y' = a y up to t = 0.3, and b y from there on: y(1) = exp(0.3 a + 0.7 b).

    kvaerno5 has a stage past the end of its steps, and there the rate that comes after.
    """
    t = torch.tensor([0.0, 0.45, 1.0], dtype=DTYPE)
    found = []
    for gradient in ("direct", "discrete", "gq", "adjoint"):
        rates = torch.tensor([0.8, -1.1], dtype=DTYPE, requires_grad=True)
        f = lambda t, y, r=rates: torch.where(t > 0.3, r[1], r[0]) * y  # noqa: E731
        options = {"step_size": 0.03125, "jump_t": [0.3]}
        y = qj.odeint(f, torch.ones(2, 1, dtype=DTYPE), t, method=name, gradient=gradient, options=options)[-1, 0, 0]
        found.append(torch.autograd.grad(y, rates)[0])
    exact = torch.tensor([0.3, 0.7], dtype=DTYPE) * float(torch.exp(torch.tensor(0.3 * 0.8 - 0.7 * 1.1)))
    assert distance(found[:1], found[1:2]) < 1e-11
    within = {"implicit_euler": 0.05, "kvaerno5": 0.01}.get(name, 1e-3)
    assert all(distance([gradient], [exact]) < within for gradient in found)


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
    t = torch.tensor([0.0, 0.15, 0.3], dtype=DTYPE)
    exact = gradients("discrete", name, t=t, rtol=1e-8, atol=1e-10)
    assert distance(gradients(gradient, name, t=t, rtol=1e-5, atol=1e-7), exact) < 1e-3


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


@pytest.mark.parametrize("gradient", ["direct", "discrete", "gq"])
@pytest.mark.parametrize(("name", "options"), [("gl6", {"step_size": 0.1}), ("radauIIA5", {})])
def test_second_derivatives(name: str, options: dict[str, Any], gradient: str) -> None:
    w = torch.tensor(0.7, dtype=DTYPE, requires_grad=True)
    t = torch.tensor([0.0, 1.0], dtype=DTYPE)
    y0 = torch.ones(1, dtype=DTYPE)
    settings: dict[str, Any] = {"method": name, "options": options, "rtol": 1e-8, "atol": 1e-8, "gradient": gradient}
    end = qj.odeint(lambda t, y: -w * y, y0, t, **settings)[-1, 0]
    (first,) = torch.autograd.grad(end, w, create_graph=True)
    (second,) = torch.autograd.grad(first, w)
    assert first.item() == pytest.approx(-torch.exp(-w).item(), rel=1e-8)
    assert second.item() == pytest.approx(torch.exp(-w).item(), rel=1e-8)


def robertson(y: Tensor, k: Tensor) -> Tensor:
    a, b, c = y.unbind(-1)
    first, second, third = k[0] * a, k[1] * b * b, k[2] * b * c
    return torch.stack([third - first, first - second - third, second], dim=-1)


def van_der_pol(y: Tensor, k: Tensor) -> Tensor:
    x, v = y.unbind(-1)
    return torch.stack([v, k[0] * (1.0 - x * x) * v - x], dim=-1)


# f, rates, y0, times, weights of the loss, and its gradients in y0 and in the logarithms of the rates: from the
# variational equations, solved by SciPy's Radau with rtol = 1e-11; those at 1e-10 agree to 1e-8. Van der Pol's
# oscillator jumps once, near t = 807.
SENSITIVITIES = {
    "robertson": (
        robertson,
        [0.04, 3e7, 1e4],
        [1.0, 3e-5, 0.0],
        [0.0, 40.0, 1e4],
        [[1.0, 1e4, 2.0], [1.0, 1e4, 2.0]],
        [3.0773843379887, 3.1162415259183, 3.1162381395155],
        [0.3236996987393, 0.0994810579925, -0.2956054062862],
    ),
    "van_der_pol": (
        van_der_pol,
        [1000.0],
        [2.0, 0.0],
        [0.0, 500.0, 900.0],
        [[1.0, 100.0], [-1.0, -100.0]],
        [2.8967079538, 9.6556942424e-04],
        [1.4380593634],
    ),
}


def relative_errors(problem: str, name: str, gradient: str, rtol: float) -> Tensor:
    """Of the gradients in y0 and in the logarithms of the rates."""
    f, rates, start, times, weights, in_start, in_rates = SENSITIVITIES[problem]
    log_k = torch.tensor(rates, dtype=DTYPE).log().requires_grad_()
    y0 = torch.tensor([start], dtype=DTYPE, requires_grad=True)
    atol = torch.tensor([1.0, 1e-5 if problem == "robertson" else 1e-3, 1.0][: len(start)], dtype=DTYPE) * rtol
    ys = qj.odeint(
        lambda t, y: f(y, log_k.exp()),
        y0,
        torch.tensor(times, dtype=DTYPE),
        method=name,
        rtol=rtol,
        atol=atol,
        gradient=gradient,
    )
    (ys[1:, 0] * torch.tensor(weights, dtype=DTYPE)).sum().backward()
    assert y0.grad is not None and log_k.grad is not None
    return torch.cat([y0.grad[0], log_k.grad]) / torch.tensor([*in_start, *in_rates], dtype=DTYPE) - 1.0


@pytest.mark.parametrize(
    ("problem", "name", "gradient", "rtol"),
    [
        ("robertson", "kvaerno5", "discrete", 1e-6),
        ("robertson", "kvaerno5", "direct", 1e-6),
        ("robertson", "kvaerno5", "gq", 1e-6),
        ("robertson", "radauIIA5", "discrete", 1e-6),
        ("robertson", "radauIIA5", "gq", 1e-6),
        ("van_der_pol", "radauIIA5", "discrete", 1e-8),
        pytest.param("van_der_pol", "radauIIA5", "direct", 1e-8, marks=pytest.mark.slow),
        pytest.param("van_der_pol", "radauIIA5", "gq", 1e-8, marks=pytest.mark.slow),
    ],
)
def test_gradients_of_stiff_problems(problem: str, name: str, gradient: str, rtol: float) -> None:
    """Of every rate and every initial value by itself."""
    assert float(relative_errors(problem, name, gradient, rtol).abs().max()) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["discrete", "gq"])
def test_what_sensitivities_lose_in_a_jump(gradient: str) -> None:
    """In the jump the sensitivity is as large as the velocity, a million times that of the slow phase after it.

    An error in the size of the tolerance there is then a million times as large beside what remains: the error of the
    gradient is proportional to the tolerance, and the tolerance has to be as small.
    """
    coarse, fine = (
        float(relative_errors("van_der_pol", "kvaerno5", gradient, rtol).abs().max()) for rtol in (1e-7, 1e-9)
    )
    assert fine < 1e6 * 1e-9 and fine < coarse / 20.0
