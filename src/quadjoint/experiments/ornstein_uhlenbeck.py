"""A time-dependent Ornstein-Uhlenbeck process with its exact law, and the Gaussian-fit KL divergence."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from quadjoint.sde.neural_sde import NeuralSDE


@dataclass(frozen=True)
class OrnsteinUhlenbeck:
    """dx = (μ t - θ x) dt + (σ + φ t) dW: linear with additive noise, so Itô and Stratonovich agree.

    Given x(s), the state at t is Gaussian. With Δ = t - s and the moments I_n(κ) = ∫_0^Δ wⁿ exp(-κ w) dw,

        mean      = x(s) exp(-θ Δ) + μ (t I_0(θ) - I_1(θ)),
        variance  = a² I_0(2θ) - 2 a φ I_1(2θ) + φ² I_2(2θ),    a = σ + φ t.

    >>> process = OrnsteinUhlenbeck()
    >>> paths = process.sample(torch.zeros(1000), torch.linspace(0, 10, 11), torch.Generator().manual_seed(0))
    >>> paths.shape
    torch.Size([11, 1000])
    """

    mu: float = 0.2
    theta: float = 0.1
    sigma: float = 0.6
    phi: float = 0.15

    def __post_init__(self) -> None:
        if not self.theta > 0:
            raise ValueError(f"theta must be positive, got {self.theta}.")

    def mean(self, x: Tensor, t: Tensor, s: Tensor | float = 0.0) -> Tensor:
        """The mean at t given the state x at s."""
        elapsed = t - s
        pull = t * _moment(0, self.theta, elapsed) - _moment(1, self.theta, elapsed)
        return x * torch.exp(-self.theta * elapsed) + self.mu * pull

    def variance(self, t: Tensor, s: Tensor | float = 0.0) -> Tensor:
        """The variance at t given the state at s."""
        elapsed, amplitude, rate = t - s, self.sigma + self.phi * t, 2 * self.theta
        return (
            amplitude**2 * _moment(0, rate, elapsed)
            - 2 * amplitude * self.phi * _moment(1, rate, elapsed)
            + self.phi**2 * _moment(2, rate, elapsed)
        )

    def sample(self, x0: Tensor, t: Tensor, generator: torch.Generator) -> Tensor:
        """Paths from x0 at t[0], exact in law at increasing times t of any spacing: (len(t), *x0.shape)."""
        times = t.double().cpu()
        if times.dim() != 1 or not bool((times[1:] > times[:-1]).all()):
            raise ValueError("the times must be one-dimensional and increasing.")
        xs, source = [x0.double().cpu()], generator.device
        for s, u in itertools.pairwise(times):
            noise = torch.randn(x0.shape, generator=generator, dtype=torch.float64, device=source).cpu()
            xs.append(self.mean(xs[-1], u, s) + self.variance(u, s).sqrt() * noise)
        return torch.stack(xs).to(x0)

    def sde(self) -> NeuralSDE:
        """The process as an SDE without parameters, for the solvers."""
        return NeuralSDE(
            lambda t, y: self.mu * t - self.theta * y,
            lambda t, y: (self.sigma + self.phi * t) * torch.ones_like(y),
            elementwise=True,
        )


def gaussian_kl(samples: Tensor, target: Tensor, dim: int = -1, floor: float = 1e-9) -> Tensor:
    """KL(N(samples) ‖ N(target)) between normal distributions fitted along ``dim``, averaged over all else.

    Where the target has no spread (all paths start from one point at t_0) both fits are points: such
    entries count as zero, in the value and in the gradient, which would otherwise be 0/0. Samples without
    spread elsewhere (a model without noise) get the standard deviation ``floor``, and their mean is still
    learnt.

    With n samples on either side a perfect model scores about 2/n, not zero: the fits themselves are random.

    >>> x = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    >>> bool(gaussian_kl(x, x) == 0)
    True
    >>> round(float(gaussian_kl(x + 10, x)))  # mean of 10² / 2 over the three rows
    50
    """
    point = _is_point(target, dim)
    target_std = torch.where(point, 1.0, target.std(dim))
    mean_gap = torch.where(point, 0.0, samples.mean(dim) - target.mean(dim)) / target_std
    variance = samples.var(dim)
    flat = point | (variance <= floor**2)
    std = torch.where(point, 1.0, torch.where(flat, floor, torch.where(flat, 1.0, variance).sqrt()))
    ratio = std / target_std
    return (0.5 * (ratio**2 + mean_gap**2 - 1) - ratio.log()).mean()


def _is_point(x: Tensor, dim: int) -> Tensor:
    """Whether samples along ``dim`` coincide up to rounding of their mean."""
    spread = x.amax(dim) - x.amin(dim)
    return spread <= 4 * torch.finfo(x.dtype).eps * x.abs().amax(dim)


def _moment(n: int, rate: float, elapsed: Tensor) -> Tensor:
    """∫_0^Δ wⁿ exp(-κ w) dw = n!/κⁿ⁺¹ P(n + 1, κ Δ), without the cancellation of the elementary formula."""
    order = torch.full_like(elapsed, n + 1)
    return torch.special.gammainc(order, rate * elapsed) * (math.factorial(n) / rate ** (n + 1))
