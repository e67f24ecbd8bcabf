"""Random ODEs: their laws tend to those of the SDEs, and every gradient method differentiates them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor, nn

import quadjoint as qj
from quadjoint.sde import KarhunenLoeve, LegendrePolynomials, NeuralSDE, OrnsteinUhlenbeck, WienerPath, WongZakai

A, S = 0.3, 0.8  # drift and volatility of geometric Brownian motion
TIGHT = {"rtol": 1e-8, "atol": 1e-8, "gradient": "direct"}


def gbm(sde_type: str) -> NeuralSDE:
    return NeuralSDE(lambda t, y: A * y, lambda t, y: S * y, sde_type=sde_type, elementwise=True)  # type: ignore[arg-type]


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.float64)


@pytest.mark.parametrize("path", [KarhunenLoeve, LegendrePolynomials])
@pytest.mark.parametrize("sde_type", ["stratonovich", "ito"])
def test_geometric_brownian_motion_path_by_path(path: type[WienerPath], sde_type: str) -> None:
    """The random ODE has the solution exp(a t + s B_m(t)), with a - s²/2 for a if the SDE is Itô's."""
    random_ode = WongZakai(gbm(sde_type), 0.0, 2.0, terms=7, path=path)
    dynamics, t = random_ode.sample(ones(5, 2), seed=3), torch.linspace(0, 2, 4, dtype=torch.float64)
    drift = A - (S**2 / 2 if sde_type == "ito" else 0.0)
    exact = torch.stack([torch.exp(drift * ti + S * dynamics.path(ti)) for ti in t])
    torch.testing.assert_close(qj.odeint(dynamics, ones(5, 2), t, **TIGHT), exact, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(random_ode.odeint(ones(5, 2), t, seed=3, **TIGHT), exact, rtol=1e-6, atol=1e-6)


def ks_distance(samples: Tensor, mean: float, std: float) -> tuple[float, float]:
    """Kolmogorov-Smirnov distance of the samples from N(mean, std²), and its p-value."""
    result = kstest(((samples.flatten() - mean) / std).numpy(), "norm")
    return float(result.statistic), float(result.pvalue)


@pytest.mark.parametrize("sde_type", ["stratonovich", "ito"])
def test_law_of_geometric_brownian_motion_converges(sde_type: str) -> None:
    n, end = 4000, 0.4
    t, std = torch.tensor([0.0, end], dtype=torch.float64), S * math.sqrt(end)
    means = {"stratonovich": A * end, "ito": (A - S**2 / 2) * end}
    distances = []
    for terms in (1, 4, 100):
        random_ode = WongZakai(gbm(sde_type), 0.0, 2.0, terms)
        logs = random_ode.odeint(ones(n, 1), t, seed=0, rtol=1e-5, gradient="direct")[-1].log()
        distance, p = ks_distance(logs, means[sde_type], std)
        distances.append(distance)
    assert distances[0] > 2 * distances[1] and distances[0] > 4 * distances[2]
    assert p > 0.01
    other = "ito" if sde_type == "stratonovich" else "stratonovich"
    assert ks_distance(logs, means[other], std)[1] < 1e-6


def test_law_of_the_time_dependent_ou_process_converges() -> None:
    process, n = OrnsteinUhlenbeck(), 4000
    t, x0 = torch.tensor([0.0, 2.5, 6.0, 10.0], dtype=torch.float64), 1.5
    distances = []
    for terms in (0, 2, 100):
        random_ode = WongZakai(process.sde(), 0.0, 10.0, terms)
        y = random_ode.odeint(x0 * ones(n, 1), t, seed=0, rtol=1e-5, gradient="direct")
        fits = [
            ks_distance(y[k], float(process.mean(torch.tensor(x0), t[k])), float(process.variance(t[k]).sqrt()))
            for k in (1, 2, 3)
        ]
        distances.append(max(distance for distance, _ in fits))
    assert distances[0] > 0.4 > distances[1] > 2 * distances[2]
    assert min(p for _, p in fits) > 0.01


def levy_area(t: Tensor, y: Tensor) -> Tensor:
    """Columns of dy = (dW_1, dW_2, y_1 dW_2 - y_2 dW_1), two vector fields that do not commute."""
    one, zero = torch.ones_like(y[..., 0]), torch.zeros_like(y[..., 0])
    columns = [torch.stack([one, zero, -y[..., 1]], -1), torch.stack([zero, one, y[..., 0]], -1)]
    return torch.stack(columns, dim=-1)


def test_levy_area_of_general_noise() -> None:
    """The area has variance t²; the truncated path's variance approaches it from below, as 1/m."""
    n, t = 8000, torch.tensor([0.0, 1.0], dtype=torch.float64)
    sde = NeuralSDE(lambda t, y: torch.zeros_like(y), levy_area, "general")
    deficits = []
    for terms in (1, 3, 60):
        random_ode = WongZakai(sde, 0.0, 1.0, terms)
        area = random_ode.odeint(0 * ones(n, 3), t, seed=1, gradient="direct")[-1, :, 2]
        deficits.append(1 - float(area.var()))
    assert deficits[0] > deficits[1] > abs(deficits[2])
    # The area is the sum of independent logistic-like terms of kurtosis 5: its sample variance is good to 2/sqrt(n).
    assert abs(deficits[2]) < 3 * 2 / math.sqrt(n) + 1 / 60


@pytest.mark.parametrize("noise_type", ["scalar", "general"])
def test_ito_rotation_grows_deterministically(noise_type: str) -> None:
    """dy = J y dW turns y; read as Itô's, |y| = exp(t/2) on every path, read as Stratonovich's, |y| = 1."""
    rotation = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)

    def g(t: Tensor, y: Tensor) -> Tensor:
        column = (y @ rotation.T).unsqueeze(-1)
        # As general noise: the same rotation split over two Wiener processes, of weights 0.6 and 0.8.
        return column if noise_type == "scalar" else torch.cat([0.6 * column, 0.8 * column], dim=-1)

    t = torch.tensor([0.0, 1.0], dtype=torch.float64)
    y0 = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(20, 2)
    for sde_type, length in (("ito", math.exp(0.5)), ("stratonovich", 1.0)):
        sde = NeuralSDE(lambda t, y: torch.zeros_like(y), g, noise_type, sde_type)  # type: ignore[arg-type]
        y = WongZakai(sde, 0.0, 1.0, terms=10).odeint(y0, t, seed=2, **TIGHT)[-1]
        torch.testing.assert_close(y.norm(dim=-1), length * ones(20), rtol=1e-6, atol=0)
        assert float(y[:, 0].std()) > 0.1  # it did turn


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
    assert torch.equal(gradients(sde, "discrete", 1e-6, store="seed"), discrete)
    assert error(gradients(sde, "gq", 1e-8), gradients(sde, "direct", 1e-8)) < 1e-6


@pytest.mark.parametrize("gradient", ["adjoint", "seminorm", "gq-paper", "gq", "auto"])
def test_every_continuous_gradient_through_a_random_ode(gradient: str) -> None:
    sde = network("diagonal")
    assert error(gradients(sde, gradient, 1e-7), gradients(sde, "direct", 1e-9)) < 1e-4


def test_reversible_gradient_through_a_random_ode() -> None:
    sde, options = network("diagonal"), {"method": "alf", "options": {"step_size": 2**-6}}
    assert error(gradients(sde, "reversible", **options), gradients(sde, "direct", 1e-9)) < 1e-2
    assert error(gradients(sde, "reversible", **options), gradients(sde, "direct", **options)) < 1e-10


@pytest.mark.parametrize("mode", ["joint", "stacked", "parallel"])
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


def test_complex_states() -> None:
    """dy = i y dW turns y by the angle B_m."""
    sde = NeuralSDE(lambda t, y: torch.zeros_like(y), lambda t, y: 1j * y)
    y0 = torch.ones(4, 1, dtype=torch.complex128)
    dynamics = WongZakai(sde, 0.0, 1.0, terms=5).sample(y0, seed=0)
    y = qj.odeint(dynamics, y0, TIMES, **TIGHT)[-1]
    torch.testing.assert_close(y, torch.exp(1j * dynamics.path(TIMES[-1])), rtol=1e-6, atol=1e-6)
    ito = WongZakai(NeuralSDE(sde.drift, sde.diffusion, sde_type="ito"), 0.0, 1.0, terms=5)
    y = ito.odeint(y0, TIMES, seed=0, **TIGHT)[-1]
    torch.testing.assert_close(y.abs(), math.exp(0.5) * ones(4, 1), rtol=1e-6, atol=0)  # as for the rotation


def test_solving_leaves_the_global_generators_alone() -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    generator = torch.Generator().manual_seed(0)
    random_ode = WongZakai(gbm("stratonovich"), 0.0, 1.0)
    one, two = (random_ode.odeint(ones(3, 1), TIMES, generator=generator) for _ in range(2))
    assert not torch.allclose(one, two)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


def test_dynamics_hold_the_weights_but_not_the_path() -> None:
    sde = network("diagonal")
    dynamics = WongZakai(sde, 0.0, 1.0).sample(ones(3, 2), seed=0)
    assert {id(p) for p in dynamics.parameters()} == {id(p) for p in sde.parameters()}
    assert set(dynamics.state_dict()) == {f"sde.{name}" for name in sde.state_dict()}


def test_solve_reports_statistics() -> None:
    solution = WongZakai(network("diagonal"), 0.0, 1.0).solve(ones(3, 2), TIMES, seed=0, gradient="discrete")
    assert solution.stats.accepted_steps > 0
    torch.testing.assert_close(solution(float(TIMES[1])), solution.ys[1], rtol=1e-3, atol=1e-3)


def test_bad_input_is_refused_in_words() -> None:
    random_ode = WongZakai(gbm("stratonovich"), 0.0, 1.0)
    with pytest.raises(ValueError, match=r"the path lives on \[0.0, 1.0\], but times run from 0.0 to 1.5"):
        random_ode.odeint(ones(3, 1), torch.tensor([0.0, 1.5]), seed=0)
    with pytest.raises(ValueError, match=r"either seed= .* or generator="):
        random_ode.odeint(ones(3, 1), TIMES)
    with pytest.raises(ValueError, match=r"drawn for a state of shape \(3, 1\), but the state has shape \(4, 1\)"):
        qj.odeint(random_ode.sample(ones(3, 1), seed=0), ones(4, 1), TIMES)
    with pytest.raises(ValueError, match="t0 < t1"):
        WongZakai(gbm("stratonovich"), 1.0, 1.0)
    with pytest.raises(TypeError, match="one tensor"):
        random_ode.sample((ones(3, 1),), seed=0)  # type: ignore[arg-type]
    wrong = WongZakai(NeuralSDE(lambda t, y: y, lambda t, y: y, "general"), 0.0, 1.0)
    with pytest.raises(ValueError, match=r"general noise needs \(3, 1, m\)"):
        wrong.sample(ones(3, 1), seed=0)
