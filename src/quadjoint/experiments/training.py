"""A training loop that can be killed at any moment and goes on as if nothing had happened.

After an epoch the model, the optimiser, the random states and the curves so far go into one file, replaced
atomically. A resumed run gives the same loss curve to the last bit as one that was never interrupted.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quadjoint.errors import SolveError
from quadjoint.experiments.contenders import lean
from quadjoint.experiments.faults import ODD_RECORD, Halt
from quadjoint.experiments.files import write_whole
from quadjoint.experiments.timing import Span, Stopwatch, differentiate, environment, gradient_errors, peak_memory
from quadjoint.experiments.workers import Team

Batch = tuple[Tensor, ...]
COUNTS = (
    "forward_evaluations",
    "backward_evaluations",
    "vjp_state",
    "vjp_params",
    "accepted_steps",
    "rejected_steps",
    "quadrature_nodes",
)


@dataclass(frozen=True)
class Task:
    """What to train: everything an experiment hands to the loop.

    ``loss`` gives the loss of a batch and the statistics of its solve (None where there are none); its generator
    is for noise. ``evaluate`` gives named test metrics. ``batches`` makes one epoch of batches from a generator.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Batch, torch.Generator], tuple[Tensor, Any]]
    batches: Callable[[torch.Generator], Iterable[Batch]]
    evaluate: Callable[[nn.Module], dict[str, float]]
    lr: float
    epochs: int
    seed: int = 0
    device: str = "cpu"
    only_last: bool = False  # evaluate after the last epoch alone
    check: float | None = None  # measure the error of a gradient at weights this many times their initial size


@dataclass(frozen=True)
class Progress:
    """What a running run tells whoever watches."""

    done: int
    total: int
    loss: float
    seconds: float  # of the last epoch


@dataclass(frozen=True)
class Context:
    """Where a run keeps its checkpoint and data, and whom it tells of its progress."""

    checkpoint: Path | None = None
    data: Path | None = None
    authors: Path | None = None  # the folder of the authors' own code
    progress: Callable[[Progress], None] = lambda progress: None
    team: Team = field(default_factory=Team)


class Diverged(RuntimeError):
    """Training ended in a loss that is not a number; the message says where."""


def minibatches(data: Batch, size: int, *, count: int | None = None) -> Callable[[torch.Generator], Iterator[Batch]]:
    """Shuffled batches of the tensors' first dimension, a new order in every epoch; of ``count`` rows drawn for it."""

    def epoch(generator: torch.Generator) -> Iterator[Batch]:
        order = torch.randperm(len(data[0]), generator=generator)[:count]
        for rows in order.split(size):
            yield tuple(tensor[rows.to(tensor.device)] for tensor in data)

    return epoch


@dataclass
class _State:
    """All that changes during training."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    generator: torch.Generator
    epoch: int = 0
    gradients: int = 0
    curves: dict[str, list[float]] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    gradient: str = ""  # the gradient method that the last solve used, and why

    def record(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self.curves.setdefault(name, []).append(value)

    def count(self, stats: Any) -> None:
        self.gradients += 1
        if stats is None:
            return
        for name in COUNTS:
            self.counts[name] = self.counts.get(name, 0) + (getattr(stats, name, 0) or 0)
        reason = getattr(stats, "reason", None)
        self.gradient = f"{stats.method}: {reason}" if reason else str(stats.method)

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "global_generator": torch.get_rng_state(),
            "epoch": self.epoch,
            "gradients": self.gradients,
            "curves": self.curves,
            "counts": self.counts,
            "gradient": self.gradient,
            "commit": environment()["commit"],
        }

    def restore(self, saved: Any) -> bool:
        """Go on from a checkpoint; False, with the state spoilt, if it is not one of this run by this code."""
        try:
            self.model.load_state_dict(saved["model"])
            self.optimiser.load_state_dict(saved["optimiser"])
            self.generator.set_state(saved["generator"])
            torch.set_rng_state(saved["global_generator"])
            for name in ("epoch", "gradients", "curves", "counts", "gradient"):
                setattr(self, name, saved[name])
            return bool(saved["commit"] == environment()["commit"])  # the curve of one code, not of two
        except (*ODD_RECORD, RuntimeError):
            return False


def load(path: Path) -> dict[str, Any] | None:
    """The checkpoint, or None if there is none that can be read. Only tensors and plain values are unpickled."""
    try:
        return torch.load(path, weights_only=True)
    except FileNotFoundError:
        return None
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError):
        return None


class _Checkpoint:
    """Saves after an epoch, unless saving would take more than a twentieth of the time."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.cost = 0.0
        self.saved = time.perf_counter()

    def save(self, state: _State) -> None:
        start = time.perf_counter()
        if self.path is None or start - self.saved < 20 * self.cost:
            return
        try:
            write_whole(self.path, partial(torch.save, state.as_dict()))
        except OSError as error:
            raise Halt(f"the checkpoint {self.path} cannot be written: {error.strerror}") from error
        self.saved = time.perf_counter()
        self.cost = self.saved - start


def train(task: Task, context: Context) -> dict[str, Any]:
    """Train to the last epoch, from the checkpoint if there is one; returns curves, counts and peak memory."""
    model = task.model.to(task.device)
    initial = copy.deepcopy(model)
    state = _begin(task, model)
    saved = load(context.checkpoint) if context.checkpoint else None
    if saved is not None and not state.restore(saved):
        model.load_state_dict(initial.state_dict())
        state = _begin(task, model)
    if state.epoch < task.epochs:
        _warm_up(task, model)
    checkpoint = _Checkpoint(context.checkpoint if context.team.leads else None)
    step = context.team.objective(model, task.loss)
    while state.epoch < task.epochs:
        loss, spent = _epoch(task, state, step, context.team)
        state.epoch += 1
        metrics = _evaluated(task, model, state.epoch)
        state.record({"train_loss": loss, "seconds": spent.wall, "cpu_seconds": spent.cpu, **metrics})
        context.progress(Progress(state.epoch, task.epochs, loss, spent.wall))
        checkpoint.save(state)
    return _result(task, state, initial)


def _evaluated(task: Task, model: nn.Module, epoch: int) -> dict[str, float]:
    """The test metrics, and how long they took."""
    if task.only_last and epoch < task.epochs:
        return {}
    watch = Stopwatch()
    model.eval()
    with torch.no_grad():
        metrics = task.evaluate(model)
    return {**metrics, "evaluation_seconds": watch.span().wall}


def _begin(task: Task, model: nn.Module) -> _State:
    generator = torch.Generator().manual_seed(task.seed)
    return _State(model, torch.optim.Adam(model.parameters(), lr=task.lr), generator)


def _warm_up(task: Task, model: nn.Module) -> None:
    """One gradient that is thrown away, so that what is done once in a process does not count as training time.

    Of the model itself: solves go by what is remembered of its function, in a resumed run as in any other.
    """
    before = copy.deepcopy(model.state_dict())
    generator = torch.Generator().manual_seed(task.seed)
    differentiate(model.train(), task.loss, next(iter(task.batches(generator))))
    model.load_state_dict(before)  # normalisation layers have counted the batch
    model.zero_grad(set_to_none=True)


def _epoch(task: Task, state: _State, step: Any, team: Team) -> tuple[float, Span]:
    """One epoch; returns its mean loss and its time, evaluation not counted."""
    state.model.train()
    watch = Stopwatch()
    total = rows = 0.0
    for batch in task.batches(state.generator):
        noise_seed = int(torch.randint(2**62, (), generator=state.generator))
        share, weight = team.share(batch)
        noise = torch.Generator().manual_seed(noise_seed + team.rank)
        state.optimiser.zero_grad(set_to_none=True)
        loss, stats = step(share, noise)
        (loss * weight).backward()
        state.optimiser.step()
        value = team.mean(float(loss.detach()) * weight)
        if value != value or value in (float("inf"), float("-inf")):
            raise Diverged(f"the loss became {value} in epoch {state.epoch + 1}; a smaller learning rate may help")
        state.count(stats)
        total += value * len(batch[0])
        rows += len(batch[0])
    return total / rows, watch.span()


def _result(task: Task, state: _State, initial: nn.Module) -> dict[str, Any]:
    gradients = max(state.gradients, 1)
    seconds, cpu_seconds = (_median(state.curves.get(name, [])) for name in ("seconds", "cpu_seconds"))
    return {
        "parameters": sum(p.numel() for p in state.model.parameters()),
        "epochs": state.epoch,
        "gradients": state.gradients,
        "curves": state.curves,
        "per_gradient": {name: total / gradients for name, total in state.counts.items()},
        "gradient": state.gradient,
        "final": {name: values[-1] for name, values in state.curves.items() if values},
        "seconds_per_epoch": seconds,
        "seconds_per_gradient": seconds * state.epoch / gradients,
        "cpu_seconds_per_gradient": cpu_seconds * state.epoch / gradients,
        **_single_gradient(task, state, initial),
    }


def _single_gradient(task: Task, state: _State, initial: nn.Module) -> dict[str, Any]:
    """Peak bytes of one gradient (forward and backward) of the trained model, and errors if asked for."""
    generator = torch.Generator().manual_seed(task.seed)
    batch = next(iter(task.batches(generator)))
    model = copy.deepcopy(state.model).train()  # batch statistics of normalisation layers will move
    with lean():
        peak = peak_memory(lambda: differentiate(model, task.loss, batch), task.device)
    measured: dict[str, Any] = {"peak_memory": peak}
    if task.check is not None:
        with contextlib.suppress(SolveError):  # a method that cannot solve it has no error to report
            measured |= gradient_errors(initial, task.loss, batch, task.check)
    return measured


def _median(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).median()) if values else 0.0
