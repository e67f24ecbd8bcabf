"""Latent SDEs: the divergence of a process from its prior, through torchsde and as one more state of a random ODE."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
import torchsde
from torch import Tensor

import quadjoint as qj
from quadjoint.nn import TimeMLP
from quadjoint.sde import NeuralSDE, WongZakai, sdeint

DTYPE = torch.float64
T = torch.tensor([0.0, 0.25, 1.0], dtype=DTYPE)
THETA, PHI, SIGMA = 0.7, -0.4, 0.6  # of the process and of its prior, dy = -theta y dt + sigma dW


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=DTYPE)


def ornstein_uhlenbeck(sde_type: Any = "stratonovich") -> NeuralSDE:
    return NeuralSDE(
        lambda t, y: -THETA * y, lambda t, y: SIGMA + 0 * y, sde_type=sde_type, prior=lambda t, y: -PHI * y
    )


def exact_divergence(start: float, end: float) -> float:
    """The mean of the integral of 1/2 ((phi - theta) y / sigma)² from y(0) = 1, with the exact moments of y."""
    rest = SIGMA**2 / (2 * THETA)
    moment = rest * (end - start)
    moment += (1 - rest) * (math.exp(-2 * THETA * start) - math.exp(-2 * THETA * end)) / (2 * THETA)
    return 0.5 * ((PHI - THETA) / SIGMA) ** 2 * moment


@pytest.mark.parametrize("method", ["reversible_heun", "srk", "random ODE"])
def test_the_mean_is_the_exact_divergence(method: str) -> None:
    sde, y0 = ornstein_uhlenbeck(), ones(4000, 1)
    if method == "random ODE":
        ys, ratio = WongZakai(sde, 0.0, 1.0, terms=40).odeint(y0, T, seed=0, logqp=True, rtol=1e-4, atol=1e-4)
    else:
        ys, ratio = sdeint(sde, y0, T, dt=1 / 64, method=method, seed=0, logqp=True)
    assert ys.shape == (3, 4000, 1) and ratio.shape == (2, 4000)
    for row, (start, end) in zip(ratio, ((0.0, 0.25), (0.25, 1.0)), strict=True):
        exact, error = exact_divergence(start, end), float(row.std()) / math.sqrt(len(row))
        assert float(row.mean()) == pytest.approx(exact, abs=4 * error + 0.02 * exact)  # 2 % for steps and terms


def networks(noise_type: str, sde_type: str = "stratonovich") -> NeuralSDE:
    """Three networks; the diffusion is away from zero, where no other drift could be reached."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drift, prior = TimeMLP(2, width=6), TimeMLP(2, width=6)
        columns = {"diagonal": 0, "scalar": 1}.get(noise_type, 2)
        wide = TimeMLP(2, width=6, out=2 * max(columns, 1))
    eye = torch.eye(2, dtype=DTYPE)

    def diffusion(t: Tensor, y: Tensor) -> Tensor:
        still = torch.zeros_like(y) if noise_type == "additive" else y
        g = torch.sigmoid(wide(t, still)) + 0.2
        return g if not columns else g.reshape(*y.shape, columns) + eye[:, :columns]

    sde = NeuralSDE(drift, diffusion, noise_type, sde_type, prior=prior)  # type: ignore[arg-type]
    sde.extra = wide  # registers the parameters that the function above closes over
    return sde.double()


@pytest.mark.parametrize("noise_type", ["diagonal", "scalar", "additive", "general"])
def test_states_and_divergences_are_those_of_torchsde(noise_type: str) -> None:
    """With the same Wiener process: torchsde's own ``logqp`` calls the methods f, g and h of the equation."""
    sde, y0 = networks(noise_type), ones(5, 2)
    ours = sdeint(sde, y0, T, dt=1 / 16, seed=3, logqp=True)
    size = (5, {"diagonal": 3, "scalar": 1}.get(noise_type, 2))
    wiener = torchsde.BrownianInterval(0.0, 1.0, size, DTYPE, entropy=3, dt=1 / 16)
    theirs = torchsde.sdeint(sde, y0, T, bm=wiener, dt=1 / 16, method="reversible_heun", logqp=True)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sde_type", ["stratonovich", "ito"])
def test_the_divergence_does_not_depend_on_the_calculus_it_is_written_in(sde_type: Any) -> None:
    """Of one process, written with either drift; along the same path."""
    sde = networks("diagonal", sde_type)
    other = sde.converted("ito" if sde_type == "stratonovich" else "stratonovich")
    settings: dict[str, Any] = {"seed": 1, "logqp": True, "rtol": 1e-8, "atol": 1e-8}
    one, same = (WongZakai(s, 0.0, 1.0, terms=3).odeint(ones(4, 2), T, **settings) for s in (sde, other))
    for mine, converted in zip(one, same, strict=True):
        torch.testing.assert_close(mine, converted, rtol=1e-6, atol=1e-7)


def test_without_terms_the_drift_alone_is_followed() -> None:
    sde = networks("diagonal", "ito")
    ys, ratio = WongZakai(sde, 0.0, 1.0, terms=0).odeint(ones(4, 2), T, seed=0, logqp=True)
    torch.testing.assert_close(ys, qj.odeint(sde.f, ones(4, 2), T), rtol=1e-3, atol=1e-4)
    assert bool((ratio > 0).all())


@pytest.mark.parametrize("noise_type", ["diagonal", "general"])
def test_gradients_of_the_random_ode(noise_type: str) -> None:
    """Every gradient is the direct one, and that is the finite difference."""
    sde, y0 = networks(noise_type), ones(3, 2)
    parameters = list(sde.parameters())

    def loss(gradient: str = "direct") -> Tensor:
        settings: dict[str, Any] = {"seed": 0, "logqp": True, "gradient": gradient, "rtol": 1e-8, "atol": 1e-8}
        ys, ratio = WongZakai(sde, 0.0, 1.0, terms=2).odeint(y0, T, **settings)
        return ys[-1].square().mean() + ratio.mean()

    wanted = torch.autograd.grad(loss(), parameters)
    for gradient in ("discrete", "gq", "adjoint"):
        for found, direct in zip(torch.autograd.grad(loss(gradient), parameters), wanted, strict=True):
            torch.testing.assert_close(found, direct, rtol=1e-4, atol=1e-6)
    for parameter, gradient in zip(parameters, wanted, strict=True):
        with torch.no_grad():
            entry = parameter.view(-1)[:1]
            values = []
            for step in (1e-4, -2e-4):
                entry += step
                values.append(float(loss()))
            entry += 1e-4
        assert float(gradient.view(-1)[0]) == pytest.approx((values[0] - values[1]) / 2e-4, rel=1e-4, abs=1e-6)


def test_the_adjoint_of_torchsde_has_the_direct_gradient() -> None:
    sde, found = networks("diagonal"), []
    for adjoint in (False, True):
        ys, ratio = sdeint(sde, ones(4, 2), T, dt=2**-4, adjoint=adjoint, seed=1, logqp=True)
        found.append(torch.autograd.grad(ys.square().sum() + ratio.sum(), list(sde.parameters())))
    for direct, other in zip(*found, strict=True):
        torch.testing.assert_close(direct, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("method", ["midpoint", "heun", "reversible_heun", "euler_heun", "milstein"])
def test_adaptive_steps_follow_their_tolerance(method: str) -> None:
    """Errors against the exact solution of geometric Brownian motion along the same Wiener process."""
    sde = NeuralSDE(lambda t, y: 0.3 * y, lambda t, y: 0.8 * y, elementwise=True)
    y0, errors, calls = ones(20, 1), [], []
    wiener = torchsde.BrownianInterval(0.0, 1.0, (20, 1), DTYPE, entropy=2, dt=0.5)
    exact = torch.exp(0.3 + 0.8 * wiener(0.0, 1.0))
    for tolerance in (1e-2, 1e-4):
        count = [0]

        def drift(t: Tensor, y: Tensor, count: list[int] = count) -> Tensor:
            count[0] += 1
            return 0.3 * y

        counted = NeuralSDE(drift, sde.diffusion, elementwise=True)
        settings: dict[str, Any] = {"adaptive": True, "rtol": tolerance, "atol": tolerance, "seed": 2}
        ys = sdeint(counted, y0, T[[0, 2]], dt=0.5, method=method, **settings)
        errors.append(float((ys[-1].detach() - exact).square().mean().sqrt()))
        calls.append(count[0])
    assert errors[1] < 0.2 * errors[0]
    assert calls[1] > 3 * calls[0]


# Messages -------------------------------------------------------------------------------------------------------------

PLAIN = NeuralSDE(lambda t, y: -y, lambda t, y: torch.ones_like(y))
GENERAL = NeuralSDE(lambda t, y: -y, lambda t, y: torch.ones(*y.shape, 3).to(y), noise_type="general")
REFUSED: dict[str, tuple[NeuralSDE, dict[str, Any], type[Exception], str]] = {
    "no prior": (PLAIN, {"logqp": True}, ValueError, "that of a prior: NeuralSDE(..., prior=...)"),
    "noise": (GENERAL, {"method": "srk"}, ValueError, "does not solve general noise; choose one of euler,"),
    "adaptive euler": (PLAIN, {"method": "euler", "adaptive": True}, ValueError, "do not converge"),
    "adaptive reversal": (PLAIN, {"adjoint": True, "adaptive": True}, ValueError, "which are not kept"),
    "adjoint of mixed noise": (
        PLAIN,
        {"y0": ones(3, 2), "method": "euler", "adjoint": True},
        ValueError,
        "say NeuralSDE(..., elementwise=True). Otherwise use method='reversible_heun'",
    ),
    "misspelt": (PLAIN, {"adjoint_metod": "midpoint"}, TypeError, "Did you mean 'adjoint_method'?"),
    "not adjoint": (PLAIN, {"adjoint_method": "midpoint"}, ValueError, "is a setting of adjoint=True"),
    "times": (PLAIN, {"t": T.clone().requires_grad_()}, ValueError, "no gradients in times"),
    "integers": (PLAIN, {"y0": torch.ones(3, 1, dtype=torch.long)}, TypeError, "y0 must be floating point"),
    "drift": (
        NeuralSDE(lambda t, y: y[:, :1], lambda t, y: y),
        {"y0": ones(3, 2)},
        ValueError,
        "the drift returned shape (3, 1) for a state of shape (3, 2)",
    ),
    "prior": (
        NeuralSDE(lambda t, y: y, lambda t, y: 1 + 0 * y, prior=lambda t, y: y[:, :1]),
        {"y0": ones(3, 2), "logqp": True},
        ValueError,
        "the prior returned shape (3, 1)",
    ),
    "blows up": (
        NeuralSDE(lambda t, y: y**5, lambda t, y: y**5),
        {"y0": 10 * ones(3, 1)},
        qj.SolveError,
        "not finite at t = ",
    ),
    "blows up adaptively": (
        NeuralSDE(lambda t, y: y / 0, lambda t, y: y),
        {"adaptive": True},
        qj.SolveError,
        "look for a division by zero",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_in_words(case: str) -> None:
    sde, changes, kind, message = REFUSED[case]
    settings = {"y0": ones(3, 1), "t": T, "dt": 0.125, "seed": 0, **changes}
    with pytest.raises(kind, match=re.escape(message)):
        sdeint(sde, **settings)
    if case in ("no prior", "prior"):
        with pytest.raises(kind, match=re.escape(message)):
            WongZakai(sde, 0.0, 1.0).odeint(settings["y0"], T, seed=0, logqp=True)


def test_steps_that_cannot_be_shortened_are_mentioned() -> None:
    with pytest.warns(qj.QuadjointWarning, match=r"fell to dt_min = 0\.05.*Loosen rtol"):
        settings: dict[str, Any] = {"adaptive": True, "rtol": 1e-9, "atol": 1e-9, "dt_min": 0.05}
        sdeint(networks("scalar"), ones(3, 2), T, dt=0.1, seed=0, **settings)


def test_other_warnings_pass() -> None:
    import warnings

    def drift(t: Tensor, y: Tensor) -> Tensor:
        warnings.warn("mine", UserWarning, stacklevel=1)
        return -y

    with pytest.warns(UserWarning, match="mine"):
        sdeint(NeuralSDE(drift, lambda t, y: y), ones(3, 1), T, dt=0.25, seed=0)
