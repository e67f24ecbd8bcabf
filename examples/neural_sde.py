"""Learn a time-dependent Ornstein-Uhlenbeck process: train as a random ODE, evaluate as an SDE.

    python examples/neural_sde.py                 # about a minute on one core
    python examples/neural_sde.py --epochs 100    # the paper's length

The data are exact samples of dx = (0.2 t - 0.1 x) dt + (0.6 + 0.15 t) dW from 200 initial conditions, 45 paths each.
Drift and diffusion are two small networks. In training, the Wiener process is replaced by ten random cosines, which
turns every solve into an ODE solve; the same weights then go to torchsde's reversible Heun method
(pip install 'quadjoint[sde]').
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

import quadjoint as qj
from quadjoint.nn import TimeMLP
from quadjoint.sde import OrnsteinUhlenbeck, gaussian_kl

PATHS = 45  # for each initial condition


def dataset(conditions: int, t: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Initial states (conditions, PATHS, 1) and paths (times, conditions, PATHS)."""
    x0 = 6 * torch.rand(conditions, 1, 1, generator=generator) - 3
    x0 = x0.expand(conditions, PATHS, 1)
    return x0, OrnsteinUhlenbeck().sample(x0, t, generator).squeeze(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn an Ornstein-Uhlenbeck process.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--terms", type=int, default=10, help="cosines in the smooth Wiener path")
    parser.add_argument("--width", type=int, default=20)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--gradient", default="auto", help="how to differentiate the solve")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    generator = torch.Generator().manual_seed(arguments.seed)
    t = torch.linspace(0, 10, 101)
    x0, paths = dataset(200, t, generator)
    x0_test, paths_test = dataset(20, t, generator)

    torch.manual_seed(arguments.seed)
    sde = qj.NeuralSDE(TimeMLP(1, width=arguments.width), TimeMLP(1, width=arguments.width))
    random_ode = qj.WongZakai(sde, 0.0, 10.0, terms=arguments.terms)
    optimiser = torch.optim.Adam(sde.parameters(), lr=arguments.lr)

    def test_kl() -> float:
        with torch.no_grad():
            ys = qj.sdeint(sde, x0_test.reshape(-1, 1), t, dt=0.01, seed=1)
        return float(gaussian_kl(ys.reshape(paths_test.shape), paths_test))

    print(f"before training: test KL {test_kl():.3f}")
    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        for batch in torch.randperm(200, generator=generator).split(40):
            y0, target = x0[batch].reshape(-1, 1), paths[:, batch]
            ys = random_ode.odeint(y0, t, generator=generator, rtol=1e-3, atol=1e-3, gradient=arguments.gradient)
            loss = gaussian_kl(ys.reshape(target.shape), target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        seconds = time.perf_counter() - start
        if epoch % 10 == 0 or epoch == arguments.epochs:
            print(f"epoch {epoch:3d}: {seconds:.1f} s, train KL {loss.item():.3f}, test KL {test_kl():.3f}")
    print(f"(a perfect model scores about 2/{PATHS} = {2 / PATHS:.3f})")


if __name__ == "__main__":
    main()
