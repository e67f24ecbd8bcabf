"""A latent SDE on irregular data, beside the exact posterior.

A hidden process z follows the Ornstein-Uhlenbeck equation dz = -z dt + dW and is seen with noise at eleven irregular
times, with a long gap. The posterior over its paths is approximated by another SDE with the same diffusion, whose drift
is learnt (Li et al. 2020): the loss is the negative evidence lower bound,

    E[ sum_i log p(x_i | z(t_i)) ] - KL(q(z_0) | p(z_0)) - E[ int 1/2 |u|^2 dt ],   g u = f - h,

whose last part ``logqp=True`` solves for as one more state. In training, the Wiener process is replaced by random
cosines, so every solve is an ODE solve with any gradient; the bound and the picture are then made by an SDE solver with
the same weights. As all is Gaussian here, the exact posterior and evidence are known (a Gaussian process).

    python examples/latent_sde.py [--quick]

It needs torchsde: pip install torchsde.
"""

import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

import quadjoint as qj

QUICK = "--quick" in sys.argv
ITERATIONS, PATHS, SAMPLES = (3, 8, 20) if QUICK else (1000, 64, 1000)
END, NOISE, WAVES = 4.0, 0.2, 8
torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)

t = torch.cat([torch.zeros(1), torch.rand(6) * 1.5, 2.6 + torch.rand(4) * 1.4]).sort().values
rest = math.sqrt(0.5)  # the deviation of z at all times


def covariance(s: Tensor, t: Tensor) -> Tensor:
    return rest**2 * torch.exp(-(s[:, None] - t).abs())


seen = covariance(t, t) + NOISE**2 * torch.eye(len(t))
x = MultivariateNormal(torch.zeros(len(t)), seen).sample()


class Drift(nn.Module):
    """The drift of the prior, and a network of z and of waves in t, which can change quickly at observations."""

    def __init__(self) -> None:
        super().__init__()
        self.net = qj.nn.MLP(2 + 2 * WAVES, 64, 64, 1, activation=nn.Tanh)
        self.mean, self.log_deviation = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        time = t.expand_as(z) / END
        angles = math.pi * time * torch.arange(1, WAVES + 1)
        return -z + self.net(torch.cat([z, time, angles.sin(), angles.cos()], dim=-1))

    def start(self, count: int) -> tuple[Tensor, Tensor]:
        """Samples of the initial state, and its divergence from the prior's."""
        posterior = Normal(self.mean, self.log_deviation.exp())
        drawn = torch.randn(count, 1, generator=generator)
        divergence = kl_divergence(posterior, Normal(0.0, rest)).sum()
        return self.mean + self.log_deviation.exp() * drawn, divergence


def bound(zs: Tensor, ratio: Tensor, divergence: Tensor) -> Tensor:
    """The evidence lower bound, from states (times, paths, 1) and the divergence of the paths between the times."""
    likelihood = Normal(zs[..., 0], NOISE).log_prob(x[:, None]).sum(0)
    return (likelihood - ratio.sum(0)).mean() - divergence


drift = Drift()
sde = qj.NeuralSDE(drift, lambda t, z: torch.ones_like(z), sde_type="ito", prior=lambda t, z: -z, elementwise=True)
random_ode = qj.WongZakai(sde, 0.0, END, terms=30)
optimiser = torch.optim.Adam(drift.parameters(), lr=4e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, ITERATIONS)
for iteration in range(ITERATIONS):
    z0, divergence = drift.start(PATHS)
    zs, ratio = random_ode.odeint(z0, t, generator=generator, logqp=True, method="bosh3", rtol=1e-2, atol=1e-2)
    loss = -bound(zs, ratio, divergence)
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(drift.parameters(), 10.0)
    optimiser.step()
    schedule.step()
    if iteration % 100 == 0 or iteration == ITERATIONS - 1:
        print(f"{iteration:4d}  evidence lower bound {-loss.item():.2f}")

grid = torch.linspace(0, END, 201)
with torch.no_grad():
    z0, divergence = drift.start(SAMPLES)
    everything = torch.cat([grid, t]).unique()
    zs, ratio = qj.sdeint(sde, z0, everything, dt=0.01, method="euler", seed=1, logqp=True)
    elbo = bound(zs[torch.isin(everything, t)], ratio, divergence)
    zs = zs[torch.isin(everything, grid), :, 0]
gain = torch.linalg.solve(seen, covariance(t, grid)).T
mean = gain @ x
deviation = (rest**2 - (gain * covariance(grid, t)).sum(1)).clamp(min=0).sqrt()
evidence = MultivariateNormal(torch.zeros(len(t)), seen).log_prob(x)
print(f"bound of the SDE {elbo:.2f}, exact evidence {evidence:.2f}")
print(f"mean off by {(zs.mean(1) - mean).square().mean().sqrt():.3f} (root of the mean square over time), ", end="")
print(f"deviation {zs.std(1).mean():.3f} on average, exactly {deviation.mean():.3f}")

figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
axis.fill_between(
    grid, mean - 2 * deviation, mean + 2 * deviation, color="0.85", label="exact posterior, two deviations"
)
axis.plot(grid, mean, color="0.4")
axis.plot(grid, zs[:, :5], color="tab:blue", lw=0.6, alpha=0.6)
centre, spread = zs.mean(1), zs.std(1)
axis.plot(grid, centre, color="tab:blue", label="latent SDE: mean, two deviations, five paths")
axis.plot(grid, centre - 2 * spread, grid, centre + 2 * spread, color="tab:blue", lw=0.8, ls="--")
axis.errorbar(t, x, NOISE, fmt="k.", lw=0.8, label="observations")
axis.set(xlabel="t", ylabel="z")
axis.legend(fontsize="small", frameon=False)
Path("outputs").mkdir(exist_ok=True)
figure.savefig("outputs/latent_sde.png", dpi=150)
print("outputs/latent_sde.png")
