"""Differentiating random ODEs: every gradient method, mode, store and noise type against backpropagation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from quadjoint.sde import NeuralSDE, WongZakai


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.float64)


class Net(nn.Module):
    def __init__(self, d: int, *shape: int) -> None:
        super().__init__()
        self.shape = shape
        self.net = nn.Sequential(nn.Linear(d + 1, 10), nn.Tanh(), nn.Linear(10, math.prod(shape)))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        t = t.expand(*y.shape[:-1], 1)
        return self.net(torch.cat([y, t], dim=-1)).reshape(*y.shape[:-1], *self.shape)


def network(noise_type: str, sde_type: str = "stratonovich") -> NeuralSDE:
    torch.manual_seed(0)
    shape = {"diagonal": (2,), "scalar": (2, 1), "additive": (2, 3), "general": (2, 3)}[noise_type]
    diffusion: nn.Module = Net(2, *shape)
    if noise_type == "additive":
        inner = diffusion
        diffusion = _OfTime(inner)
    return NeuralSDE(Net(2, 2), diffusion, noise_type, sde_type).double()  # type: ignore[arg-type]


class _OfTime(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.net(t, torch.zeros_like(y))


TIMES = torch.linspace(0, 1, 5, dtype=torch.float64)


def gradients(
    sde: NeuralSDE, gradient: str, tol: float = 1e-8, store: str = "coefficients", **options: object
) -> Tensor:
    """All derivatives of a loss over observations along one path, in y0 and in the parameters, as one vector."""
    y0 = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2).requires_grad_()
    random_ode = WongZakai(sde, 0.0, 1.0, terms=5, store=store)  # type: ignore[arg-type]
    options = {"rtol": tol, "atol": tol, **options}
    ys = random_ode.odeint(y0, TIMES, seed=4, gradient=gradient, **options)
    loss = (ys * torch.cos(torch.arange(ys.numel(), dtype=ys.dtype)).reshape(ys.shape)).sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, [y0, *sde.parameters()])])


def error(value: Tensor, exact: Tensor) -> float:
    return float((value - exact).norm() / exact.norm())


@pytest.mark.parametrize("sde_type", ["stratonovich", "ito"])
@pytest.mark.parametrize("noise_type", ["diagonal", "scalar", "additive", "general"])
def test_gradients_agree_with_direct_backpropagation(noise_type: str, sde_type: str) -> None:
    sde = network(noise_type, sde_type)
    discrete = gradients(sde, "discrete", 1e-6)
    assert error(discrete, gradients(sde, "direct", 1e-6)) < 1e-11  # the same steps, transposed
    one_way = qj.DiscreteAdjoint(mode="joint")  # left alone, the second solve may be transposed in another order
    assert torch.equal(gradients(sde, one_way, 1e-6, store="seed"), gradients(sde, one_way, 1e-6))
    assert error(gradients(sde, "gq", 1e-8), gradients(sde, "direct", 1e-8)) < 1e-6


@pytest.mark.parametrize("gradient", ["adjoint", "seminorm", "gq-paper", "gq", "auto"])
def test_every_continuous_gradient_through_a_random_ode(gradient: str) -> None:
    sde = network("diagonal")
    assert error(gradients(sde, gradient, 1e-7), gradients(sde, "direct", 1e-9)) < 1e-4


def test_reversible_gradient_through_a_random_ode() -> None:
    sde, options = network("diagonal"), {"method": "alf", "options": {"step_size": 2**-6}}
    assert error(gradients(sde, "reversible", **options), gradients(sde, "direct", 1e-9)) < 1e-2
    assert error(gradients(sde, "reversible", **options), gradients(sde, "direct", **options)) < 1e-10


@pytest.mark.parametrize("mode", ["joint", "stacked"])
@pytest.mark.parametrize("store", ["coefficients", "seed"])
def test_modes_of_the_discrete_adjoint(mode: str, store: str) -> None:
    sde = network("diagonal")
    value = gradients(sde, qj.DiscreteAdjoint(mode=mode), 1e-6, store=store)  # type: ignore[arg-type]
    assert error(value, gradients(sde, "direct", 1e-6)) < 1e-11


@pytest.mark.parametrize("sde_type", ["stratonovich", "ito"])
@pytest.mark.parametrize("noise_type", ["diagonal", "general"])
def test_dynamics_can_be_compiled_whole(noise_type: str, sde_type: str) -> None:
    sde, y = network(noise_type, sde_type), ones(3, 2).requires_grad_()
    dynamics = WongZakai(sde, 0.0, 1.0, terms=20).sample(y, seed=0)
    compiled = torch.compile(dynamics, backend="aot_eager", fullgraph=True)
    for t in TIMES[:2]:
        eager, traced = (torch.autograd.grad(f(t, y).sum(), [y, *sde.parameters()]) for f in (dynamics, compiled))
        for a, b in zip(eager, traced, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
@pytest.mark.parametrize("sde_type", ["stratonovich", "ito"])
def test_compiled_steps(sde_type: str) -> None:
    sde = network("diagonal", sde_type)
    assert error(gradients(sde, "discrete", 1e-6, compile=True), gradients(sde, "direct", 1e-6)) < 1e-11


def test_times_of_each_sample() -> None:
    sde = network("diagonal")
    dynamics = WongZakai(sde, 0.0, 2.0, terms=5).sample(ones(3, 2), seed=0)
    times = torch.tensor([[0.0, 0.5, 1.0], [0.2, 0.3, 2.0], [0.0, 1.0, 1.5]], dtype=torch.float64)
    together = qj.odeint(dynamics, ones(3, 2), times, rtol=1e-9, atol=1e-9)
    for b in range(3):
        alone = qj.odeint(dynamics, ones(3, 2), times[b], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(together[:, b], alone[:, b], rtol=1e-6, atol=1e-6)
    padded = times.clone()
    padded[0, 2] = math.nan
    ys = WongZakai(sde, 0.0, 2.0, terms=5).odeint(ones(3, 2), padded, seed=0, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ys[:, 1:], together[:, 1:], rtol=1e-6, atol=1e-6)


def test_several_paths_alive_at_once() -> None:
    """Two solves before either backward give the gradients of two solves after another."""
    sde, y0 = network("diagonal"), ones(3, 2)
    random_ode = WongZakai(sde, 0.0, 1.0, terms=5)

    def loss(seed: int) -> Tensor:
        return random_ode.odeint(y0, TIMES, seed=seed, gradient="gq").square().sum()

    parameters = list(sde.parameters())
    separate = [torch.autograd.grad(loss(seed), parameters) for seed in (0, 1)]
    losses = [loss(seed) for seed in (0, 1)]
    for together, alone in zip([torch.autograd.grad(x, parameters) for x in losses], separate, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))
    assert not torch.allclose(separate[0][0], separate[1][0])


def test_no_terms_train_the_drift_alone() -> None:
    for sde_type in ("stratonovich", "ito"):
        sde = network("diagonal", sde_type)
        ys = WongZakai(sde, 0.0, 1.0, terms=0).odeint(ones(3, 2), TIMES, seed=0, gradient="discrete")
        torch.testing.assert_close(ys, qj.odeint(sde.f, ones(3, 2), TIMES))
        ys.sum().backward()
        assert all(p.grad is not None and bool(p.grad.any()) for p in sde.drift.parameters())  # type: ignore[attr-defined]
        assert not any(p.grad is not None and bool(p.grad.any()) for p in sde.diffusion.parameters())  # type: ignore[attr-defined]


def test_dynamics_hold_the_weights_but_not_the_path() -> None:
    sde = network("diagonal")
    dynamics = WongZakai(sde, 0.0, 1.0).sample(ones(3, 2), seed=0)
    assert {id(p) for p in dynamics.parameters()} == {id(p) for p in sde.parameters()}
    assert set(dynamics.state_dict()) == {f"sde.{name}" for name in sde.state_dict()}


def test_solve_reports_statistics() -> None:
    solution = WongZakai(network("diagonal"), 0.0, 1.0).solve(ones(3, 2), TIMES, seed=0, gradient="discrete")
    assert solution.stats.accepted_steps > 0
    torch.testing.assert_close(solution(float(TIMES[1])), solution.ys[1], rtol=1e-3, atol=1e-3)
