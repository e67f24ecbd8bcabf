"""Random ODEs: their laws tend to those of the SDEs, and every gradient method differentiates them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

import quadjoint as qj
from quadjoint.experiments.ornstein_uhlenbeck import OrnsteinUhlenbeck
from quadjoint.sde import KarhunenLoeve, LegendrePolynomials, NeuralSDE, WienerPath, WongZakai
from quadjoint.solver.remembered import remembered

A, S = 0.3, 0.8  # drift and volatility of geometric Brownian motion
TIMES = torch.linspace(0, 1, 5, dtype=torch.float64)
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


def test_a_path_leaves_nothing_behind_for_the_next() -> None:
    """Whatever was solved before, along however rough a path, steps and numbers are the same bit for bit."""
    sde, y0 = gbm("stratonovich"), ones(3, 2)
    first = WongZakai(sde, 0.0, 1.0, terms=5).solve(y0, TIMES, seed=0)
    rough = WongZakai(sde, 0.0, 1.0, terms=60)
    rough.solve(10.0 * y0, TIMES, seed=1, rtol=1e-8)
    again = WongZakai(sde, 0.0, 1.0, terms=5).solve(y0, TIMES, seed=0)
    assert torch.equal(first.ys, again.ys) and first.stats.forward_evaluations == again.stats.forward_evaluations
    assert not remembered(rough.sample(y0, seed=0))


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


GROWING = NeuralSDE(lambda t, y: torch.ones_like(y), lambda t, y: torch.ones_like(y), elementwise=True)


@pytest.mark.parametrize("backwards", [False, True])
def test_a_solve_to_an_event_ends_where_the_path_does(backwards: bool) -> None:
    """The drift alone would reach the event at 5, where there is no path."""
    t = torch.tensor([1.0, 0.0] if backwards else [0.0, 1.0], dtype=torch.float64)
    random_ode, y0 = WongZakai(GROWING, 0.0, 1.0), torch.zeros(1, 1, dtype=torch.float64)
    end, _ = random_ode.odeint(y0, t, seed=0, event_fn=lambda t, y: y.abs().sum() - 50)
    assert float(end) == float(t[-1])
    with pytest.raises(ValueError, match=r"the path lives on \[0.0, 1.0\]"):
        random_ode.solve(y0, t, seed=0, event_fn=lambda t, y: y.sum() - 50, options={"horizon": 7.0})
    early = WongZakai(GROWING, 0.0, 1.0, terms=0).odeint(y0, t, seed=0, event_fn=lambda t, y: y.abs().sum() - 0.5)[0]
    assert float(early) == pytest.approx(0.5, abs=1e-6)


def test_an_event_beside_the_divergence_is_refused() -> None:
    sde = NeuralSDE(lambda t, y: 0 * y, lambda t, y: 1 + 0 * y, prior=lambda t, y: 0 * y)
    with pytest.raises(ValueError, match="with event_fn use logqp=False"):
        WongZakai(sde, 0.0, 1.0).odeint(ones(1, 1), TIMES, seed=0, logqp=True, event_fn=lambda t, y: y)


def test_times_of_single_precision_far_from_zero() -> None:
    t = torch.tensor([2000.1, 2001.0])
    assert WongZakai(GROWING, 2000.1, 2001.0).odeint(torch.zeros(1, 1), t, seed=0).isfinite().all()


def test_times_of_each_sample_reach_states_of_any_shape_beside_the_divergence() -> None:
    """dy = t dt: half the square of the end."""
    sde = NeuralSDE(lambda t, y: t + 0 * y, lambda t, y: 1 + 0 * y, prior=lambda t, y: 0 * y)
    t, y0 = torch.tensor([[0.0, 1.0], [0.0, 2.0]], dtype=torch.float64), torch.zeros(2, 2, 1, dtype=torch.float64)
    ys, ratio = WongZakai(sde, 0.0, 2.0, terms=0).odeint(y0, t, seed=0, logqp=True)
    exact = torch.tensor([[0.5, 0.5], [2.0, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(ys[-1, ..., 0], exact, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ratio[0, :, 0], torch.tensor([1 / 6, 8 / 6], dtype=torch.float64), rtol=1e-3, atol=1e-3)
