"""Weekly carbon dioxide at Mauna Loa: an irregular series, every window with times of its own.

The record of Keeling and Whorf, 1958 to 2001 (2284 weeks, 59 of them missing; from statsmodels), is cut into windows of
three years. Each window keeps the weeks that were measured, at the calendar times at which they were measured, so the
rows of ``t`` differ in start and in length and are padded with NaN. One call of ``odeint`` solves them all.

The dynamics see the season through their time argument, which here is one time per sample:

    d(concentration, hidden)/dt = (linear + net)(concentration, hidden, season(t)).

Windows that begin before 1990 are used for training; then one solve runs from the last of these weeks to 2001.

    python examples/co2.py [--quick]
"""

import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from statsmodels.datasets import co2
from torch import Tensor, nn

import quadjoint as qj

QUICK = "--quick" in sys.argv
ITERATIONS, STRIDE = (3, 3.0) if QUICK else (800, 0.5)
SPAN, HIDDEN, SPLIT = 3.0, 4, 1990.0
torch.manual_seed(0)

series = co2.load().data["co2"]
measured = series.notna().to_numpy()
day = torch.as_tensor(series.index.to_julian_date().to_numpy()[measured])
weeks = 2000.0 + (day - 2451545.0) / 365.25  # in years; float64, as float32 has no weeks left at 1990
values = torch.as_tensor(series.to_numpy()[measured])
scaled = ((values - 340.0) / 10.0).float()


def windows() -> tuple[Tensor, Tensor]:
    """Times and values of overlapping training windows, shape (B, K), NaN at the ends of shorter rows."""
    starts = torch.arange(float(weeks[0]), SPLIT - SPAN, STRIDE, dtype=torch.float64)
    rows = [(weeks >= s) & (weeks < s + SPAN) for s in starts]
    pad = nn.utils.rnn.pad_sequence
    t = pad([weeks[row] for row in rows], batch_first=True, padding_value=math.nan)
    y = pad([scaled[row] for row in rows], batch_first=True, padding_value=math.nan)
    return t - 1980.0, y  # whole years, so the season is that of t


class Dynamics(nn.Module):
    """The rate of change of the concentration and of what it does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.net = qj.nn.MLP(1 + HIDDEN + 4, 48, 48, 1 + HIDDEN, activation=nn.Tanh)
        self.linear = nn.Linear(1 + HIDDEN + 4, 1 + HIDDEN)  # goes on where the network has seen nothing
        self.start = qj.nn.MLP(5, 32, HIDDEN, activation=nn.Tanh)

    def season(self, t: Tensor, like: Tensor) -> Tensor:
        angle = 2 * math.pi * t.expand_as(like)
        return torch.cat([angle.sin(), angle.cos(), (2 * angle).sin(), (2 * angle).cos()], dim=-1)

    def initial(self, t: Tensor, value: Tensor) -> Tensor:
        """The state at times t, (B, 1), with known concentration: the rest is guessed from it and the season."""
        return torch.cat([value, self.start(torch.cat([value, self.season(t, value)], dim=-1))], dim=-1)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        seen = torch.cat([y, self.season(t, y[..., :1])], dim=-1)
        return self.linear(seen) + self.net(seen)


t, y = windows()
there = ~torch.isnan(y)
print(f"{len(t)} windows of {int(there.sum(1).min())} to {int(there.sum(1).max())} weeks")
f = Dynamics()
optimiser = torch.optim.Adam(f.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, ITERATIONS)
for iteration in range(ITERATIONS):
    chosen = torch.randperm(len(t))[:16]
    y0 = f.initial(t[chosen, :1].float(), y[chosen, :1])
    ys = qj.odeint(f, y0, t[chosen], rtol=1e-3, atol=1e-3)  # shape: (K, 16, 1 + HIDDEN)
    error = torch.where(there[chosen], ys[..., 0].T - y[chosen].nan_to_num(), 0.0)
    loss = error.square().sum() / there[chosen].sum()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    schedule.step()
    if iteration % 100 == 0 or iteration == ITERATIONS - 1:
        print(f"{iteration:4d}  error {10 * loss.item() ** 0.5:.2f} ppm")

last = int((weeks < SPLIT).sum()) - 1
ahead = weeks[last:] - 1980.0
with torch.no_grad():
    y0 = f.initial(ahead[:1, None].float(), scaled[last].reshape(1, 1))
    forecast = 340.0 + 10.0 * qj.odeint(f, y0, ahead, rtol=1e-4, atol=1e-4)[:, 0, 0]
errors = (forecast - values[last:]).square()
for years in (1, 5, 11):
    within = ahead - ahead[0] <= years
    print(f"forecast over {years:2d} years: {errors[within].mean().sqrt():.2f} ppm")

figure, (whole, detail) = plt.subplots(2, 1, figsize=(9, 6), layout="constrained", height_ratios=(3, 2))
for axis in (whole, detail):
    axis.plot(weeks, values, ".", color="0.35", ms=2, label="measured weeks")
    axis.plot(1980.0 + ahead, forecast, color="tab:red", lw=1.2, label="one solve from 1990 on")
    axis.set_ylabel("CO₂, ppm")
whole.axvline(SPLIT, color="grey", lw=0.8, ls=":")
whole.legend(frameon=False)
whole.set(xlim=(1958, 2002), title="Trained on windows before 1990")
detail.set(xlim=(1988, 1995), ylim=(345, 366), xlabel="year")
Path("outputs").mkdir(exist_ok=True)
figure.savefig("outputs/co2.png", dpi=150)
print("outputs/co2.png")
