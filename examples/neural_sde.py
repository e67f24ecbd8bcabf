"""A neural SDE: learn a time-dependent Ornstein-Uhlenbeck process, trained as a random ODE, evaluated as an SDE.

The data are exact samples of dx = (0.2 t - 0.1 x) dt + (0.6 + 0.15 t) dW from 200 initial conditions, 45 paths each.
Drift and diffusion are two small networks. In training, the Wiener process is replaced by ten random cosines, which
turns every solve into an ODE solve; the same weights then go to torchsde's reversible Heun method. The loss is the
Kullback-Leibler divergence between normal distributions fitted to samples and data, at every time and start.

    python examples/neural_sde.py [--quick]

It needs torchsde: pip install torchsde.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import quadjoint as qj
from quadjoint.experiments.ornstein_uhlenbeck import OrnsteinUhlenbeck, gaussian_kl

QUICK = "--quick" in sys.argv
EPOCHS, CONDITIONS, PATHS, TIMES = (2, 4, 6, 11) if QUICK else (30, 200, 45, 101)
BATCHES = 2 if QUICK else 5
generator = torch.Generator().manual_seed(0)
torch.manual_seed(0)

process = OrnsteinUhlenbeck()
t = torch.linspace(0, 10, TIMES)


def sampled(conditions: int) -> tuple[Tensor, Tensor]:
    """Initial states (conditions, PATHS, 1) and paths (times, conditions, PATHS)."""
    x0 = (6 * torch.rand(conditions, 1, 1, generator=generator) - 3).expand(conditions, PATHS, 1)
    return x0, process.sample(x0, t, generator).squeeze(-1)


x0, paths = sampled(CONDITIONS)
x0_test, paths_test = sampled(CONDITIONS // 2 if QUICK else 20)

sde = qj.NeuralSDE(qj.nn.TimeMLP(1, width=20), qj.nn.TimeMLP(1, width=20))
random_ode = qj.WongZakai(sde, 0.0, 10.0, terms=10)
optimiser = torch.optim.Adam(sde.parameters(), lr=2e-3)


def test_divergence() -> float:
    with torch.no_grad():
        ys = qj.sdeint(sde, x0_test.reshape(-1, 1), t, dt=0.05, seed=1)
    return float(gaussian_kl(ys.reshape(paths_test.shape), paths_test))


tests = [test_divergence()]
print(f"before training: divergence on the test set {tests[0]:.3f}")
for epoch in range(1, EPOCHS + 1):
    for batch in torch.randperm(CONDITIONS, generator=generator).chunk(BATCHES):
        target = paths[:, batch]
        ys = random_ode.odeint(x0[batch].reshape(-1, 1), t, generator=generator, rtol=1e-3, atol=1e-3)
        loss = gaussian_kl(ys.reshape(target.shape), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    tests.append(test_divergence())
    if epoch % 5 == 0 or epoch == EPOCHS:
        print(f"epoch {epoch:3d}: divergence in training {loss.item():.3f}, on the test set {tests[-1]:.3f}")

start = torch.full((20 if QUICK else 2000, 1), 2.0)
with torch.no_grad():
    learnt = {
        "learnt, as an SDE": qj.sdeint(sde, start, t, dt=0.05, seed=2)[..., 0],
        "learnt, as a random ODE": random_ode.odeint(start, t, seed=2, rtol=1e-3, atol=1e-3)[..., 0],
    }
figure, (law, learning) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", width_ratios=(1.5, 1))
mean, deviation = process.mean(torch.tensor(2.0), t), process.variance(t).sqrt()
law.fill_between(t, mean - deviation, mean + deviation, color="0.85", label="exact: mean ± deviation")
law.plot(t, mean, color="0.4")
for (label, ys), colour, line in zip(learnt.items(), ("tab:blue", "tab:orange"), ("-", "--"), strict=True):
    law.plot(t, ys.mean(1), color=colour, linestyle=line, label=label)
    law.plot(t, ys.mean(1) - ys.std(1), t, ys.mean(1) + ys.std(1), color=colour, linestyle=line, linewidth=0.8)
law.set(xlabel="t", ylabel="x", title="paths from x(0) = 2")
law.legend(fontsize="small", loc="upper left")
learning.semilogy(tests, color="0.3", label="test set")
learning.axhline(2 / PATHS, color="0.6", linestyle=":", label=f"about what {PATHS} exact paths would have")
learning.set(xlabel="epoch", ylabel="divergence")
learning.legend(fontsize="small")
Path("outputs").mkdir(exist_ok=True)
figure.savefig("outputs/neural_sde.png", dpi=150)
print("outputs/neural_sde.png")
