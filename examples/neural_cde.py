"""A neural CDE on spoken vowels with missing frames: who is speaking?

Nine men say the vowels a and e; twelve cepstrum coefficients are measured every 6.4 ms, 7 to 29 times an utterance
(Kudo, Toyama and Shimbo 1999; Japanese Vowels in the UCI Machine Learning Repository, doi 10.24432/C5NS47, CC BY 4.0):
270 utterances for training, 370 from other days for testing. 30 % of the frames of every utterance are dropped at
random, so that each has a length and times of its own: rows of ``t`` end with NaN, and one solve runs along all paths.

The neural CDE dz = f(z) dX (Kidger et al. 2020) follows a cubic path through what is left. As it sees changes only, the
integral of every coefficient is a channel too. A GRU with as many parameters reads the frames and the time since the
one before. Both are trained with three seeds, then tested with other fractions of the frames dropped.

    python examples/neural_cde.py [--quick]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

import quadjoint as qj

QUICK = "--quick" in sys.argv
EPOCHS, SEEDS, BATCH = (1, 1, 90) if QUICK else (40, 3, 45)
DROPPED, LONGEST, SPEAKERS = 0.3, 29, 9
FRACTIONS = (0.0, 0.3, 0.5, 0.7)
data = np.load(Path(__file__).parent / "data" / "japanese_vowels.npz")


def utterances(part: str) -> tuple[Tensor, Tensor, Tensor]:
    """Frames (B, 29, 12) and times (B, 29) with NaN at the ends, and speakers."""
    values = torch.as_tensor(data[f"{part}_values"].T / 1e6, dtype=torch.float32)
    rows = values.split(data[f"{part}_lengths"].tolist())
    x = torch.full((len(rows), LONGEST, 12), torch.nan)
    for row, frames in zip(x, rows, strict=True):
        row[: len(frames)] = frames
    t = torch.where(x[..., 0].isnan(), torch.nan, torch.arange(LONGEST) / 10.0)
    return x, t, torch.as_tensor(data[f"{part}_speakers"], dtype=torch.long)


def drop(x: Tensor, t: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Leave out frames at random, at least two stay, and move what is left to the front."""
    generator = torch.Generator().manual_seed(seed)
    lot = torch.where(t.isnan(), 2.0, torch.rand(t.shape, generator=generator))
    kept = ((1 - fraction) * (~t.isnan()).sum(1, keepdim=True)).round().clamp(min=2)
    gone = lot.argsort(dim=1).argsort(dim=1) >= kept
    order = gone.long().argsort(dim=1, stable=True)
    there = torch.arange(LONGEST) < kept
    x = torch.where(there[..., None], x.gather(1, order[..., None].expand_as(x)), torch.nan)
    return x, torch.where(there, t.gather(1, order), torch.nan)


class CDE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cde = qj.nn.NeuralCDE(channels=25, hidden=12, width=24, rtol=1e-2, atol=1e-3)
        self.read = nn.Linear(12, SPEAKERS)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        gaps = torch.diff(t, dim=1, prepend=t[:, :1])[..., None]
        X = qj.cde.interpolate(torch.cat([x, (gaps * x).cumsum(1)], dim=-1), t, kind="hermite")
        return self.read(self.cde(X))


class GRU(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gru = nn.GRU(13, size, batch_first=True)
        self.read = nn.Linear(size, SPEAKERS)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        gaps = torch.diff(t, dim=1, prepend=t[:, :1])
        states, _ = self.gru(torch.cat([gaps[..., None], x], dim=-1).nan_to_num())
        last = (~t.isnan()).sum(1) - 1
        return self.read(states[torch.arange(len(t)), last])


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def accuracy(model: nn.Module, x: Tensor, t: Tensor, speakers: Tensor) -> float:
    with torch.no_grad():
        return float((model(x, t).argmax(1) == speakers).float().mean())


def train(model: nn.Module, seed: int) -> list[float]:
    """The accuracy on the test set after every epoch."""
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    generator = torch.Generator().manual_seed(seed)
    curve = []
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x), generator=generator).split(BATCH):
            loss = nn.functional.cross_entropy(model(x[batch], t[batch]), speakers[batch])
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
        schedule.step()
        curve.append(accuracy(model, x_test, t_test, speakers_test))
    return curve


full, t_full, speakers = utterances("train")
full_test, t_full_test, speakers_test = utterances("test")
mean, deviation = full.nanmean((0, 1)), full[~full.isnan().any(-1)].std(0)
full, full_test = (full - mean) / deviation, (full_test - mean) / deviation
if QUICK:
    full_test, t_full_test, speakers_test = full_test[::10], t_full_test[::10], speakers_test[::10]
x, t = drop(full, t_full, DROPPED, seed=0)
x_test, t_test = drop(full_test, t_full_test, DROPPED, seed=1)
width = max(n for n in range(1, 100) if size(GRU(n)) <= size(CDE()))

figure, (learning, fewer) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
for name, make, colour in (("neural CDE", CDE, "tab:blue"), ("GRU", lambda: GRU(width), "tab:orange")):
    curves, rows = [], []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        model = make()
        curves.append(train(model, seed))
        cases = [drop(full_test, t_full_test, fraction, seed=2) for fraction in FRACTIONS]
        rows.append([accuracy(model, *case, speakers_test) for case in cases])
        print(f"{name}, {size(model)} parameters, seed {seed}: {curves[-1][-1]:.1%} of the test set")
    curve, row = torch.tensor(curves), torch.tensor(rows)
    print(f"{name}: {curve[:, -1].mean():.1%}; without", end=" ")
    print(", ".join(f"{f:.0%} of the frames {a:.1%}" for f, a in zip(FRACTIONS, row.mean(0).tolist(), strict=True)))
    for axis, across, values in ((learning, range(1, EPOCHS + 1), curve), (fewer, FRACTIONS, row)):
        axis.plot(across, values.mean(0), color=colour, marker="." if axis is fewer else "", label=name)
        axis.fill_between(across, values.amin(0), values.amax(0), color=colour, alpha=0.2, lw=0)
learning.set(xlabel="epoch", ylabel="speakers recognised", ylim=(0.5, 1.0), title="30 % of the frames dropped")
learning.legend(frameon=False, loc="lower right", title="mean and range of three seeds")
fewer.axvline(DROPPED, color="0.7", lw=0.8, ls=":")
fewer.set(xlabel="frames dropped in the test", title="trained with 30 %")
Path("outputs").mkdir(exist_ok=True)
figure.savefig("outputs/neural_cde.png", dpi=150)
print("outputs/neural_cde.png")
