"""The exact law of the time-dependent Ornstein-Uhlenbeck process, and the KL divergence of Gaussian fits."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import kstest
from torch.distributions import Normal, kl_divergence

from quadjoint.experiments.ornstein_uhlenbeck import OrnsteinUhlenbeck, gaussian_kl
from quadjoint.sde import WongZakai

PROCESS = OrnsteinUhlenbeck()


def f64(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize(("s", "t"), [(0.0, 10.0), (3.0, 3.1), (5.0, 5.0 + 1e-6)])
def test_mean_and_variance_solve_the_moment_integrals(s: float, t: float) -> None:
    p, x = PROCESS, 1.7
    pull = quad(lambda u: p.mu * u * math.exp(-p.theta * (t - u)), s, t, epsabs=0)[0]
    spread = quad(lambda u: (p.sigma + p.phi * u) ** 2 * math.exp(-2 * p.theta * (t - u)), s, t, epsabs=0)[0]
    mean = float(p.mean(f64(x), f64(t), f64(s)))
    assert mean - x * math.exp(-p.theta * (t - s)) == pytest.approx(pull, rel=1e-9, abs=1e-15)
    assert float(p.variance(f64(t), f64(s))) == pytest.approx(spread, rel=1e-9)


def test_transitions_compose() -> None:
    """Going to t by way of u is going to t (Chapman-Kolmogorov)."""
    x, s, u, t = f64(-2.0), f64(1.0), f64(4.0), f64(9.0)
    torch.testing.assert_close(PROCESS.mean(PROCESS.mean(x, u, s), t, u), PROCESS.mean(x, t, s))
    carried = PROCESS.variance(u, s) * torch.exp(-2 * PROCESS.theta * (t - u))
    torch.testing.assert_close(carried + PROCESS.variance(t, u), PROCESS.variance(t, s))


def test_samples_have_the_exact_law_whatever_the_spacing() -> None:
    for times in (torch.tensor([0.0, 10.0]), torch.linspace(0, 10, 101)):
        paths = PROCESS.sample(torch.full((5000,), 2.5), times, torch.Generator().manual_seed(0))
        mean, std = PROCESS.mean(f64(2.5), f64(10.0)), PROCESS.variance(f64(10.0)).sqrt()
        assert kstest(((paths[-1].double() - mean) / std).numpy(), "norm").pvalue > 0.01
        assert bool((paths[0] == 2.5).all())


def test_sampled_increments_are_independent_of_the_past() -> None:
    paths = PROCESS.sample(torch.zeros(5000), torch.tensor([0.0, 4.0, 8.0]), torch.Generator().manual_seed(0)).double()
    surprise = paths[2] - PROCESS.mean(paths[1], f64(8.0), f64(4.0))
    assert abs(float(torch.corrcoef(torch.stack([paths[1], surprise]))[0, 1])) < 4 / math.sqrt(5000)
    assert float(surprise.var()) == pytest.approx(
        float(PROCESS.variance(f64(8.0), f64(4.0))), rel=4 * math.sqrt(2 / 5000)
    )


def samples(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_kl_is_that_of_the_fitted_normal_distributions() -> None:
    x, y = 0.5 + 2 * samples(0, 4, 7, 45), samples(1, 4, 7, 45)
    fits = [Normal(z.mean(-1), z.std(-1)) for z in (x, y)]
    torch.testing.assert_close(gaussian_kl(x, y), kl_divergence(*fits).mean())
    torch.testing.assert_close(gaussian_kl(x.movedim(-1, 1), y.movedim(-1, 1), dim=1), gaussian_kl(x, y))


def test_perfect_model_scores_two_over_n() -> None:
    n = 45
    value = float(gaussian_kl(samples(0, 4000, n), samples(1, 4000, n)))
    assert value == pytest.approx(2 / n, rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_nan_from_the_start_reaches_the_parameters(dtype: torch.dtype) -> None:
    """All paths of an initial condition coincide at t_0; y_0 itself is computed from a parameter here."""
    scale = torch.tensor(1.3, dtype=dtype, requires_grad=True)
    x0 = torch.tensor([-2.9, 0.1, 2.3], dtype=dtype).repeat_interleave(45).unsqueeze(-1)
    t = torch.linspace(0, 10, 5, dtype=dtype)
    target = PROCESS.sample(x0, t, torch.Generator().manual_seed(0)).reshape(5, 3, 45)
    for terms in (10, 0):  # with no terms at all the samples coincide at every time
        ys = WongZakai(PROCESS.sde(), 0.0, 10.0, terms).odeint(scale * x0, t, seed=1, gradient="direct")
        (gradient,) = torch.autograd.grad(gaussian_kl(ys.reshape(5, 3, 45), target), scale)
        assert bool(gradient.isfinite()) and float(gradient) != 0


def test_points_count_as_zero_in_value_and_gradient() -> None:
    target = torch.stack([torch.full((45,), 0.7), torch.randn(45, generator=torch.Generator().manual_seed(0))])
    x = torch.stack([torch.full((45,), 0.9), target[1] + 1]).requires_grad_()
    value = gaussian_kl(x, target)
    torch.testing.assert_close(value, gaussian_kl(x[1:], target[1:]) / 2)
    (gradient,) = torch.autograd.grad(value, x)
    assert not bool(gradient[0].any()) and bool(gradient[1].any())


def test_a_process_without_pull_is_refused() -> None:
    with pytest.raises(ValueError, match="theta must be positive"):
        OrnsteinUhlenbeck(theta=0.0)
    with pytest.raises(ValueError, match="increasing"):
        PROCESS.sample(torch.zeros(2), torch.tensor([1.0, 0.0]), torch.Generator())
