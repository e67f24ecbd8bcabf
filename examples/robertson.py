"""Robertson's reaction: three rates over nine powers of ten, learnt from noisy concentrations.

The classic stiff problem (Robertson 1966): A -> B slowly, 2 B -> B + C at once, B + C -> A + C fast,

    a' = -k1 a + k3 b c,    b' = k1 a - k2 b^2 - k3 b c,    c' = k2 b^2,    k = (0.04, 3e7, 1e4).

B is a few parts in a hundred thousand and reacts within milliseconds, while the whole needs days: an explicit method
takes hundreds of steps a second, an implicit one a few dozen in all. Eight solutions of A, more and less diluted, are
measured at sixteen times from a hundredth of a second to three hours, with two per cent of noise. The logarithms of the
rates are the parameters, and the loss is in logarithms as well, so that 3e7 and 0.04 are equals.

    python examples/robertson.py [--quick]
"""

# %% The reaction
import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import quadjoint as qj

QUICK = "--quick" in sys.argv
SOLUTIONS, ITERATIONS = (2, 3) if QUICK else (8, 40)
NOISE = 0.02
TRUE = torch.tensor([0.04, 3e7, 1e4], dtype=torch.float64)
torch.manual_seed(0)


class Robertson(nn.Module):
    """The reaction with rates exp(log_k), for states (..., 3)."""

    def __init__(self, k: Tensor) -> None:
        super().__init__()
        self.log_k = nn.Parameter(k.log())

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        k1, k2, k3 = self.log_k.exp()
        a, b, c = y.unbind(-1)
        return torch.stack([k3 * b * c - k1 * a, k1 * a - k2 * b * b - k3 * b * c, k2 * b * b], dim=-1)


# %% The measurements: solutions of A, at times that grow by the same factor
diluted = torch.logspace(0.0, -1.0, SOLUTIONS, dtype=torch.float64)
y0 = torch.stack([diluted, torch.zeros_like(diluted), torch.zeros_like(diluted)], dim=1)  # shape: (SOLUTIONS, 3)
t = torch.cat([torch.zeros(1), torch.logspace(-2, 4, 16)]).double()
# B is a hundred thousand times less than A, and C begins with nothing: so are their tolerances.
SETTINGS = {"method": "kvaerno5", "rtol": 1e-4, "atol": torch.tensor([1e-7, 1e-11, 1e-11], dtype=torch.float64)}
with torch.no_grad():
    exact = qj.solve(Robertson(TRUE), y0, t, **SETTINGS)
    explicit = qj.solve(Robertson(TRUE), y0, torch.tensor([0.0, 0.1]), rtol=1e-4, atol=SETTINGS["atol"])
print(
    f"kvaerno5: {exact.stats.accepted_steps} steps for three hours; dopri5: {explicit.stats.accepted_steps} for 0.1 s"
)
measured = exact.ys[1:].log() + NOISE * torch.randn_like(exact.ys[1:])

# %% The fit, from rates that are wrong by factors of 30, 1/30 and 30
f = Robertson(TRUE * torch.tensor([30.0, 1 / 30.0, 30.0], dtype=torch.float64))
history: list[Tensor] = []


def closure() -> Tensor:
    history.append(f.log_k.detach().clone())
    f.zero_grad()
    ys = qj.odeint(f, y0, t, **SETTINGS)[1:]
    loss = (ys.clamp(min=1e-12).log() - measured).square().mean()
    loss.backward()
    if len(history) % 10 == 1:
        k = history[-1].exp()
        print(
            f"{len(history):3d}: error {loss.item() ** 0.5:.4f} (logarithms), rates {k[0]:.4g}, {k[1]:.4g}, {k[2]:.4g}"
        )
    return loss


optimiser = torch.optim.Adam(f.parameters(), lr=0.3)
for _ in range(ITERATIONS):  # to the neighbourhood
    optimiser.step(closure)
torch.optim.LBFGS(f.parameters(), max_iter=ITERATIONS // 2, line_search_fn="strong_wolfe").step(closure)
k, wrong = f.log_k.detach().exp(), (f.log_k.detach() - TRUE.log()).expm1() * 100.0
print(f"rates {k[0]:.4g}, {k[1]:.4g}, {k[2]:.4g}: wrong by {wrong[0]:.1f}, {wrong[1]:.1f} and {wrong[2]:.1f} %")

# %% The picture
grid = torch.cat([torch.zeros(1), torch.logspace(-2, 4, 121)]).double()
with torch.no_grad():
    fitted = qj.odeint(f, y0, grid, **SETTINGS)[1:]
figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
scales, names = (1.0, 1e5, 1.0), ("A", "B, times 1e5", "C")
for axis, shown in zip(axes[:2], (0, SOLUTIONS - 1), strict=True):
    for i, (scale, name) in enumerate(zip(scales, names, strict=True)):
        (line,) = axis.semilogx(grid[1:], fitted[:, shown, i] * scale, label=name)
        axis.plot(t[1:], measured[:, shown, i].exp() * scale, "o", ms=4, color=line.get_color())
    axis.set(xlabel="seconds", title=f"{diluted[shown]:.2g} A at the start")
axes[0].legend(frameon=False, fontsize="small")
ratios = (torch.stack(history) - TRUE.log()) / math.log(10.0)
for i in range(3):
    axes[2].plot(ratios[:, i], label=f"k{i + 1} = {TRUE[i]:g}")
axes[2].axhline(0.0, color="grey", lw=0.8, ls=":")
axes[2].set(xlabel="evaluation", title="log10 of the rates over the true ones")
axes[2].legend(frameon=False, fontsize="small")
Path("outputs").mkdir(exist_ok=True)
figure.savefig("outputs/robertson.png", dpi=150)
print("outputs/robertson.png")
