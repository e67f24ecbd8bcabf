"""Methods that take steps in turns: each from the same weights, on the same batches, with its times and counts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from quadjoint.errors import SolveError
from quadjoint.experiments.contenders import lean
from quadjoint.experiments.timing import Span, Stopwatch, differentiate, gradient, peak_memory
from quadjoint.experiments.training import COUNTS, Batch, Task


def endless(task: Task) -> Iterator[Batch]:
    """Batches without end, the same for all contestants that have the same data."""
    generator = torch.Generator().manual_seed(task.seed)
    return (batch for _ in iter(int, 1) for batch in task.batches(generator))


class Contestant:
    """A method, with settings of its own in an ablation; its weights are set back before every step."""

    def __init__(self, task: Task, weights: dict[str, Tensor], settings: dict[str, Any]) -> None:
        self.task, self.weights = task, weights
        self.model = task.model.to(task.device)
        self.model.load_state_dict(weights)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=task.lr)
        self.batches = endless(task)
        self.batch = next(self.batches)
        self.spans: list[Span] = []
        self.facts: dict[str, Any] = {"settings": settings} if settings else {}

    def first(self) -> Tensor:
        """One gradient that is not timed: what it counts goes into the facts. Returns it as one vector."""
        counts: list[Any] = []

        def loss(model: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Any]:
            value, stats = self.task.loss(model, batch, generator)
            counts.append(stats)
            return value, stats

        found = gradient(self.model.train(), loss, self.batch)
        self.optimiser.step()  # makes its buffers, which is done once
        if counts[0] is not None:
            self.facts["per_gradient"] = {name: getattr(counts[0], name, 0) or 0 for name in COUNTS}
        return found

    def step(self, seed: int) -> None:
        batch = next(self.batches)
        self.model.load_state_dict(self.weights)
        self.model.train()
        noise = torch.Generator().manual_seed(seed)
        if self.task.device.startswith("cuda"):
            torch.cuda.synchronize(self.task.device)
        watch = Stopwatch()
        self.optimiser.zero_grad(set_to_none=True)
        with lean():
            loss, _ = self.task.loss(self.model, batch, noise)
            loss.backward()
        self.optimiser.step()
        float(loss.detach())  # a device has then done its work
        self.spans.append(watch.span())
        self.optimiser.zero_grad(set_to_none=True)  # what others need not carry

    def weigh(self) -> None:
        """Measure the peak memory of one gradient."""
        self.model.load_state_dict(self.weights)
        with lean():
            work = partial(differentiate, self.model, self.task.loss, self.batch)
            self.facts["peak_memory"] = peak_memory(work, self.task.device)

    def result(self) -> dict[str, Any]:
        wall, cpu = [span.wall for span in self.spans], [span.cpu for span in self.spans]
        return {
            "steps": {"seconds": wall, "cpu_seconds": cpu},
            "seconds_per_gradient": statistics.median(wall),
            "cpu_seconds_per_gradient": statistics.median(cpu),
            **self.facts,
        }


class Line:
    """The contestants that are still in it, and why others are not."""

    def __init__(self, contestants: dict[str, Contestant]) -> None:
        self.contestants = contestants
        self.given_up: dict[str, str] = {}

    def each(self, work: Callable[[Contestant], Any], names: Iterable[str] | None = None) -> dict[str, Any]:
        """Let each do something, in the order of the names; who cannot solve its problem is out of the line."""
        found = {}
        for name in list(self.contestants) if names is None else names:
            try:
                found[name] = work(self.contestants[name])
            except (SolveError, torch.OutOfMemoryError) as error:
                self.given_up[name] = f"{type(error).__name__}: {error}"
                del self.contestants[name]
        return found
