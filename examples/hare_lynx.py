"""Hare and lynx: a neural ODE with a known part, fitted to twenty-one years of counts.

The pelts counted by the Hudson Bay Company from 1900 to 1920 are the classic predator-prey record (Odum 1953; the
numbers come with the package pints). The logarithms u of the two populations follow

    du/dt = a + B exp(u) + net(u),

Lotka and Volterra's equation plus a small network for what it misses. Five models from different seeds are fitted to
the first sixteen years and asked about the last five. Their spread shows what the record leaves open between models of
this kind; it is no error bar: where all of them are wrong in the same way, it is narrow.

    python examples/hare_lynx.py [--quick]
"""

# %% The record
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from pints.toy import LotkaVolterraModel
from torch import Tensor, nn

import quadjoint as qj

QUICK = "--quick" in sys.argv
SEEDS, ITERATIONS = (2, 6) if QUICK else (5, 300)
SCALE = 30.0  # thousands of pelts, so that both populations are about one

record = LotkaVolterraModel()
years = torch.as_tensor(record.suggested_times(), dtype=torch.float32)
pelts = torch.as_tensor(np.asarray(record.suggested_values()), dtype=torch.float32)  # shape: (21, 2)
observed = (pelts / SCALE).log()
KNOWN = 16  # years used for fitting


# %% The model
class PredatorPrey(nn.Module):
    """Rates of growth of both species: linear in the populations, plus a network."""

    def __init__(self) -> None:
        super().__init__()
        self.growth = nn.Parameter(torch.tensor([0.5, -0.8]))
        self.interaction = nn.Parameter(torch.tensor([[0.0, -0.6], [0.6, 0.0]]))
        self.net = qj.nn.MLP(2, 16, 2, activation=nn.Tanh)
        nn.init.zeros_(self.net[-1].weight)  # start from Lotka and Volterra
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, t: Tensor, u: Tensor) -> Tensor:
        return self.growth + u.exp() @ self.interaction.T + self.net(u)


# %% Fit, on a window that grows: a long window at once has many poor minima
def fit(seed: int) -> tuple[PredatorPrey, Tensor]:
    torch.manual_seed(seed)
    f = PredatorPrey()
    with torch.no_grad():  # models that start alike would end alike
        f.growth += 0.1 * torch.randn(2)
        f.interaction += 0.1 * torch.randn(2, 2) * (f.interaction != 0)
    start = nn.Parameter(observed[0].clone())
    optimiser = torch.optim.AdamW([*f.parameters(), start], lr=0.02, weight_decay=0.01)
    for iteration in range(ITERATIONS):
        known = min(KNOWN, 6 + KNOWN * 2 * iteration // ITERATIONS)
        ys = qj.odeint(f, start, years[:known], rtol=1e-4)
        loss = (ys - observed[:known]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"seed {seed}: error of the fit {loss.item() ** 0.5:.3f} (of the logarithm)")
    return f, start.detach()


models = [fit(seed) for seed in range(SEEDS)]

# %% Forecast: all five models, and the range they span
grid = torch.linspace(0, 20, 201)
with torch.no_grad():
    paths = torch.stack([qj.odeint(f, start, grid, rtol=1e-4) for f, start in models]).exp() * SCALE

figure, axes = plt.subplots(2, 1, figsize=(8, 5.5), sharex=True, layout="constrained")
for species, (axis, name, colour) in enumerate(zip(axes, ("hare", "lynx"), ("tab:brown", "tab:blue"), strict=True)):
    low, high = paths[..., species].amin(0), paths[..., species].amax(0)
    axis.fill_between(1900 + grid, low, high, color=colour, alpha=0.2, lw=0, label=f"range of {SEEDS} models")
    axis.plot(1900 + grid, paths[..., species].median(0).values, color=colour, label="median")
    axis.plot(1900 + years[:KNOWN], pelts[:KNOWN, species], "ko", ms=4, label="used for fitting")
    axis.plot(1900 + years[KNOWN:], pelts[KNOWN:, species], "ko", ms=4, mfc="white", label="not seen")
    axis.axvline(1900 + years[KNOWN - 1] + 0.5, color="grey", lw=0.8, ls=":")
    axis.set(ylabel=f"{name}, thousand pelts", ylim=(0, 105))
axes[0].legend(ncols=4, fontsize="small", frameon=False, loc="upper right")
axes[1].set(xlabel="year", xticks=range(1900, 1921, 4))
Path("outputs").mkdir(exist_ok=True)
figure.savefig("outputs/hare_lynx.png", dpi=150)
print("outputs/hare_lynx.png")
