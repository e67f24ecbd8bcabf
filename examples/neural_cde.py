"""A neural CDE on spoken vowels with missing frames: who is speaking?

Nine men say the vowels a and e; twelve cepstrum coefficients are measured every 6.4 ms, 7 to 29 times an utterance
(Kudo, Toyama and Shimbo 1999: Japanese Vowels, UCI Machine Learning Repository, doi 10.24432/C5NS47, CC BY 4.0; 270
utterances for training, 370 from other days for testing). Of every utterance 30 % of the frames are dropped at random, so
each has a length and times of its own: rows of ``t`` end with NaN, and one solve runs along all paths of a batch.

The neural CDE dz = f(z) dX (Kidger et al. 2020) follows a cubic path through the frames that are left. A GRU of the same
number of parameters reads the frames and the time since the one before. Both are trained with three seeds.

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
        self.cde = qj.nn.NeuralCDE(channels=13, hidden=16, width=32, rtol=1e-2, atol=1e-3)
        self.read = nn.Linear(16, SPEAKERS)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.read(self.cde(qj.cde.interpolate(x, t, kind="hermite")))


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
x, t = drop(full, t_full, DROPPED, seed=0)
x_test, t_test = drop(full_test, t_full_test, DROPPED, seed=1)
if QUICK:
    x_test, t_test, speakers_test = x_test[::10], t_test[::10], speakers_test[::10]
width = max(n for n in range(1, 100) if size(GRU(n)) <= size(CDE()))
results = {}
for name, make in {"neural CDE": CDE, "GRU": lambda: GRU(width)}.items():
    curves, robust = [], []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        model = make()
        curves.append(train(model, seed))
        cases = [drop(full_test, t_full_test, fraction, seed=2) for fraction in FRACTIONS[: 1 if QUICK else None]]
        robust.append([accuracy(model, *case, speakers_test) for case in cases if not QUICK])
        print(f"{name}, {size(model)} parameters, seed {seed}: {curves[-1][-1]:.1%} of the test set")
    results[name] = torch.tensor(curves), torch.tensor(robust)
    print(f"{name}: {results[name][0][:, -1].mean():.1%} on average")
