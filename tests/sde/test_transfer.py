"""The same weights in torchsde: laws, gradients, generators, and life without torchsde."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

import quadjoint as qj
from quadjoint.nn import TimeMLP
from quadjoint.sde import NeuralSDE, WongZakai, sdeint

A, S = 0.3, 0.8
T = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)


def gbm(sde_type: str) -> NeuralSDE:
    return NeuralSDE(lambda t, y: A * y, lambda t, y: S * y, sde_type=sde_type, elementwise=True)  # type: ignore[arg-type]


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.float64)


@pytest.mark.parametrize("method", ["reversible_heun", "milstein", "srk", "euler"])
@pytest.mark.parametrize("sde_type", ["stratonovich", "ito"])
def test_law_is_that_of_the_sde_whichever_calculus_the_method_solves(method: str, sde_type: str) -> None:
    # Steps of 1/50 bias the mean of log y by at most about 0.005 (Euler), a tenth of what would be seen.
    y = sdeint(gbm(sde_type), ones(2000, 1), T, dt=0.02, method=method, seed=0)[-1].detach()
    mean = A - (S**2 / 2 if sde_type == "ito" else 0.0)
    assert kstest(((y.log() - mean) / S).flatten().numpy(), "norm").pvalue > 0.01


def networks(noise_type: str, sde_type: str = "stratonovich") -> NeuralSDE:
    torch.manual_seed(0)
    diffusion = TimeMLP(2, width=8, out=2 if noise_type == "diagonal" else 6)
    shaped = diffusion if noise_type == "diagonal" else (lambda t, y: diffusion(t, y).reshape(*y.shape, 3))
    sde = NeuralSDE(TimeMLP(2, width=8), shaped, noise_type, sde_type)  # type: ignore[arg-type]
    sde.extra = diffusion  # registers the parameters that the function above closes over
    return sde.double()


@pytest.mark.parametrize(
    ("noise_type", "sde_type"), [("diagonal", "stratonovich"), ("diagonal", "ito"), ("general", "stratonovich")]
)
def test_adjoint_of_the_reversible_solver_is_the_direct_gradient(noise_type: str, sde_type: str) -> None:
    sde = networks(noise_type, sde_type)
    gradients = []
    for adjoint in (False, True):
        y0 = ones(4, 2).requires_grad_()
        ys = sdeint(sde, y0, T, dt=2**-4, adjoint=adjoint, seed=1)
        gradients.append(torch.autograd.grad(ys.square().sum(), [y0, *sde.parameters()]))
    for direct, adjoint_ in zip(*gradients, strict=True):
        torch.testing.assert_close(direct, adjoint_, rtol=1e-9, atol=1e-9)


def test_weights_are_shared_with_the_random_ode() -> None:
    """Along either way the gradient reaches the same tensors, and the states are close in law."""
    sde, n = networks("diagonal"), 2000
    with torch.no_grad():
        as_sde = sdeint(sde, ones(n, 2), T, dt=0.02, seed=0)[-1]
        as_ode = WongZakai(sde, 0.0, 1.0, terms=50).odeint(ones(n, 2), T, seed=0)[-1]
    spread = as_sde.std(0)
    assert bool(((as_sde.mean(0) - as_ode.mean(0)).abs() < 4 * spread * math.sqrt(2 / n)).all())
    assert bool(((as_ode.std(0) / spread - 1).abs() < 4 / math.sqrt(n) + 0.03).all())  # 0.03 for 50 terms


def test_seed_determines_the_path_and_global_generators_are_untouched() -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    sde = gbm("stratonovich")
    one, same, other = (sdeint(sde, ones(3, 1), T, dt=0.1, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.allclose(one, other)
    generator = torch.Generator().manual_seed(0)
    drawn = [sdeint(sde, ones(3, 1), T, dt=0.1, generator=generator) for _ in range(2)]
    assert not torch.allclose(*drawn)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


def test_seeds_of_opposite_sign_are_two_paths() -> None:
    one, other = (sdeint(gbm("ito"), ones(3, 1), T, dt=0.1, method="euler", seed=seed) for seed in (1, -1))
    assert not torch.allclose(one, other)


BROWNIAN = NeuralSDE(lambda t, y: 0 * y, lambda t, y: torch.ones_like(y), elementwise=True)


@pytest.mark.parametrize("settings", [{}, {"method": "euler"}, {"method": "midpoint", "adaptive": True, "rtol": 1.0}])
def test_states_at_times_between_steps_have_the_law_of_the_sde(settings: dict[str, Any]) -> None:
    """Increments of Brownian motion over halves of a step: variances 1/20, and independent."""
    t, n = torch.tensor([0.0, 0.05, 0.1], dtype=torch.float64), 20000
    increments = sdeint(BROWNIAN, torch.zeros(n, 1, dtype=torch.float64), t, dt=0.1, seed=0, **settings).diff(dim=0)
    first, second = increments[..., 0] / 0.05**0.5
    for part in (first, second):
        assert abs(float(part.var()) - 1) < 4 * math.sqrt(2 / n)
    assert abs(float((first * second).mean())) < 4 / math.sqrt(n)


def test_the_adjoint_is_the_direct_gradient_whatever_the_times_are() -> None:
    """The reversible solver takes the same steps backwards though dt does not divide what lies between times.

    Their ends differ by rounding, about 1e-16, and the Wiener process by the root of that.
    """
    sde, gradients = networks("diagonal"), []
    t = torch.tensor([0.0, 0.13, 0.2, 1.0], dtype=torch.float64)
    for adjoint in (False, True):
        y0 = ones(4, 2).requires_grad_()
        ys = sdeint(sde, y0, t, dt=0.1, adjoint=adjoint, seed=1)
        gradients.append(torch.autograd.grad(ys.square().sum(), [y0, *sde.parameters()]))
    for direct, adjoint_ in zip(*gradients, strict=True):
        torch.testing.assert_close(direct, adjoint_, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("noise_type", ["scalar", "diagonal"])
def test_milstein_has_the_law_of_the_sde_if_entries_depend_on_each_other(noise_type: str) -> None:
    """dy = J y o dW turns y by W, so |y| stays; with dy_1 = s y_2 o dW_1, dy_2 = s y_1 o dW_2 the mean of y stays."""
    y0 = ones(2000, 2)
    if noise_type == "scalar":
        turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
        sde = NeuralSDE(lambda t, y: 0 * y, lambda t, y: (y @ turn).unsqueeze(-1), "scalar")
        y = sdeint(sde, y0, T, dt=2**-8, method="milstein", seed=0)[-1].detach()
        torch.testing.assert_close(y.square().sum(1), 2 * ones(2000), rtol=0.05, atol=0)
        return
    sde = NeuralSDE(lambda t, y: 0 * y, lambda t, y: 0.5 * y.flip(-1))
    y = sdeint(sde, y0, T, dt=2**-6, method="milstein", seed=0)[-1].detach()
    assert bool(((y.mean(0) - 1).abs() < 4 * y.std(0) / math.sqrt(2000)).all())


@pytest.mark.parametrize("logqp", [False, True])
def test_the_adjoint_reaches_what_plain_functions_close_over(logqp: bool) -> None:
    net, other = torch.nn.Linear(2, 2).double(), torch.nn.Linear(2, 2).double()
    sde = NeuralSDE(lambda t, y: net(y), lambda t, y: torch.sigmoid(other(y)) + 0.1, prior=lambda t, y: -y)
    weights, found = [*net.parameters(), *other.parameters()], []
    for adjoint in (False, True):
        out = sdeint(sde, ones(4, 2), T, dt=2**-4, adjoint=adjoint, seed=1, logqp=logqp)
        loss = sum(part.square().sum() for part in (out if logqp else (out,)))
        found.append(torch.autograd.grad(loss, weights))
    for direct, adjoint_ in zip(*found, strict=True):
        torch.testing.assert_close(direct, adjoint_, rtol=1e-8, atol=1e-8)


def test_bad_input_is_refused_in_words() -> None:
    sde = gbm("stratonovich")
    with pytest.raises(ValueError, match="Did you mean 'reversible_heun'"):
        sdeint(sde, ones(3, 1), T, dt=0.1, method="reversible_huen", seed=0)
    with pytest.raises(ValueError, match=r"\(batch, d\), got \(3,\)"):
        sdeint(sde, ones(3), T, dt=0.1, seed=0)
    with pytest.raises(ValueError, match="increasing order"):
        sdeint(sde, ones(3, 1), T.flip(0), dt=0.1, seed=0)
    with pytest.raises(ValueError, match=r"either seed= .* or generator="):
        sdeint(sde, ones(3, 1), T, dt=0.1)
    with pytest.raises(ValueError, match="dt must be positive"):
        sdeint(sde, ones(3, 1), T, dt=0.0, seed=0)


def test_training_needs_neither_torchsde_nor_scipy() -> None:
    program = """
import sys
sys.modules["torchsde"] = sys.modules["scipy"] = None
import torch, quadjoint as qj
sde = qj.NeuralSDE(lambda t, y: -y, lambda t, y: y)
print(tuple(qj.WongZakai(sde, 0.0, 1.0).odeint(torch.ones(2, 1), torch.tensor([0.0, 1.0]), seed=0).shape))
try:
    qj.sdeint(sde, torch.ones(2, 1), torch.tensor([0.0, 1.0]), dt=0.1, seed=0)
except ImportError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["(2, 2, 1)", "sdeint solves SDEs with torchsde: pip install torchsde"]


def test_names_are_public() -> None:
    assert (qj.NeuralSDE, qj.WongZakai, qj.sdeint) == (NeuralSDE, WongZakai, sdeint)
