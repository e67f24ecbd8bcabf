"""A Hamiltonian network: dynamics that are the derivatives of one learnt function, which they therefore conserve.

The pendulum has H(q, p) = p^2 / 2 - cos q. A network H(q, p) is trained through the solver on noisy trajectories, with

    dq/dt = dH/dp,   dp/dt = -dH/dq

(Greydanus et al. 2019), and beside it a plain network of the same size for dq/dt and dp/dt. f differentiates H; the
solver, and every gradient method, take it as it is. Then both run ten times as long as any trajectory seen: what the
Hamiltonian network conserves is its own H, so the pendulum's energy wavers along its path, but it does not drift.

    python examples/hamiltonian.py [--quick]
"""

# %% The pendulum, and a network for its energy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import quadjoint as qj

QUICK = "--quick" in sys.argv
ITERATIONS, TRAJECTORIES = (3, 4) if QUICK else (500, 40)
torch.manual_seed(0)


def pendulum(t: Tensor, y: Tensor) -> Tensor:
    return torch.stack([y[..., 1], -y[..., 0].sin()], dim=-1)


def energy(y: Tensor) -> Tensor:
    return y[..., 1].square() / 2 - y[..., 0].cos()


class Hamiltonian(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = qj.nn.MLP(2, 64, 64, 1, activation=nn.Tanh)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(self.net(y).sum(), y, create_graph=True)
        return torch.stack([slope[..., 1], -slope[..., 0]], dim=-1)


# %% Noisy trajectories
times = torch.linspace(0, 3, 16)
y0 = torch.randn(TRAJECTORIES, 2)
y0 = y0 / y0.norm(dim=1, keepdim=True) * (0.4 + 1.4 * torch.rand(TRAJECTORIES, 1))
exact = qj.odeint(pendulum, y0, times, rtol=1e-7, atol=1e-9)
seen = exact + 0.02 * torch.randn_like(exact)

# %% Train both through the solver
models = {"Hamiltonian network": Hamiltonian(), "plain network": qj.nn.TimeMLP(2, 64, time=False, activation=nn.Tanh)}
for name, model in models.items():
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, ITERATIONS)
    for _ in range(ITERATIONS):
        ys = qj.odeint(model, seen[0], times, rtol=1e-3, atol=1e-4)
        loss = (ys - seen).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    print(f"{name}: error on the trajectories {loss.item() ** 0.5:.4f} (noise 0.02)")

# %% Ten times as long
start, long = torch.tensor([1.5, 0.0]), torch.linspace(0, 30, 301)
truth = qj.odeint(pendulum, start, long, rtol=1e-6, atol=1e-8)
figure, (plane, drift) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
plane.plot(*seen.reshape(-1, 2).T, ".", color="0.75", ms=2, label="data")
plane.plot(*truth.T, color="k", lw=1, ls="--", label="pendulum")
drift.plot(long, energy(truth), color="k", lw=1, ls="--")
for (name, model), colour in zip(models.items(), ("tab:blue", "tab:orange"), strict=True):
    with torch.no_grad():
        path = qj.odeint(model, start, long, rtol=1e-6, atol=1e-8)
    plane.plot(*path.T, color=colour, lw=1.2, label=name)
    drift.plot(long, energy(path), color=colour, lw=1.2, label=name)
    print(f"{name}: energy from {energy(path[0]):.3f} to {energy(path[-1]):.3f} after t = 30")
plane.set(xlabel="angle q", ylabel="momentum p", aspect="equal")
plane.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, 1.17), ncols=2)
drift.axvspan(0, 3, color="0.93", lw=0)
drift.set(xlabel="t (grey: as long as the data)", ylabel="energy of the pendulum")
drift.legend(frameon=False, fontsize="small")
Path("outputs").mkdir(exist_ok=True)
figure.savefig("outputs/hamiltonian.png", dpi=150)
print("outputs/hamiltonian.png")
