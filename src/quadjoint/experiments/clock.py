"""The time of a training step: every method on the same weights and the same batches, in turns.

Trained runs are no fair clock: after a few epochs methods have different weights, on which solves differ in length, and
one run may meet a busier machine than the next. Here the weights are those after ``before`` steps of training with the
exact gradient; in every turn each method takes one step from them (forward, backward, optimiser) on the batch of that
turn, and nobody always comes after the same neighbour.
"""

from __future__ import annotations

import copy
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from quadjoint.errors import SolveError
from quadjoint.experiments import authors, crossing, images, nested_spheres, ou, sines
from quadjoint.experiments import config as shared
from quadjoint.experiments.config import Choice, RunConfig
from quadjoint.experiments.contenders import lean
from quadjoint.experiments.timing import Span, Stopwatch, gradient, peak_memory
from quadjoint.experiments.training import COUNTS, Batch, Context, Progress, Task

NAME = "clock"
IN_TURNS = "turns"  # what stands for the method of a run that has them all
METHODS = (*shared.METHODS, *ou.TORCHSDE, *authors.METHODS)
# The paper holds its method against the SDE's own gradients there, not against the adjoints of the ODE.
OTHERS = {"ode": ou.TORCHSDE, "ou": ("adjoint", "seminorm", "paper:adjoint", "paper:seminorm")}
TASKS: dict[str, Any] = {module.NAME: module for module in (nested_spheres, sines, images, ou, crossing)}
TRAINER = "discrete"  # makes the weights


@dataclass(frozen=True)
class Config(RunConfig):
    """One task at one width, all methods."""

    method: str = IN_TURNS
    task: str = "crossing"
    dataset: str | None = None  # and the batch size, of images alone
    batch: int | None = None
    methods: str = " ".join(shared.METHODS)
    turns: int = 10
    before: int = 100  # training steps before the first turn


def grid(choice: Choice) -> list[Config]:
    """The cells of the preset, each with the methods that were chosen of those it knows."""
    cells = {"quick": _quick, "evening": _evening, "paper": _paper}[choice.preset]()
    if choice.widths is not None:
        cells = list(dict.fromkeys(replace(cell, width=width) for cell in cells for width in choice.widths))
    made = []
    for cell in cells:
        left_out = OTHERS["ou" if cell.task == "ou" else "ode"]
        methods = [m for m in choice.pick_methods(METHODS) if m not in left_out]
        methods = [m for m in methods if choice.authors or m not in authors.METHODS]
        seed = choice.seeds[0] if choice.seeds else 0
        if methods:
            made.append(replace(cell, methods=" ".join(methods), seed=seed, device=choice.device))
    return made


def _quick() -> list[Config]:
    """Five turns, three where a step takes seconds."""
    base = Config(turns=5, before=20)
    widths = {"crossing": (20, 500, 2000), "nested-spheres": (20, 500, 1500), "sines": (20, 200, 1000)}
    cells = [replace(base, task=task, width=width) for task, chosen in widths.items() for width in chosen]
    cells += [replace(base, task="ou", width=width, turns=3) for width in (20, 100)]
    cells += [_image(base, name, batch) for name in ("mnist", "cifar10", "svhn") for batch in (16, 32)]
    large = [_image(base, "mnist", 256), replace(_image(base, "mnist", 16), width=200, before=2)]
    return cells + [replace(cell, turns=3) for cell in large]


def _evening() -> list[Config]:
    """Ten turns, on weights as far trained as an evening allows."""
    base = Config(turns=10)
    trained = {"crossing": 200, "nested-spheres": 1000, "sines": 250}  # the steps of a whole training
    widths = {"crossing": (5, 20, 100, 500, 1000, 2000), "nested-spheres": (5, 20, 100), "sines": (5, 20, 200, 1000)}
    cells = [
        replace(base, task=task, width=width, before=trained[task])
        for task, chosen in widths.items()
        for width in chosen
    ]
    cells += [replace(base, task="nested-spheres", width=width) for width in (500, 1500)]
    cells += [replace(base, task="ou", width=width) for width in (20, 50, 100)]
    cells += [_image(base, name, batch) for name in ("mnist", "cifar10", "svhn") for batch in (16, 32)]
    wide = [_image(base, *pair) for pair in (("mnist", 16), ("mnist", 32), ("cifar10", 16))]
    slow = [_image(base, "mnist", 256), *(replace(cell, width=200) for cell in wide)]
    return cells + [replace(cell, before=10) for cell in slow]


def _paper() -> list[Config]:
    """Every width of the paper."""
    base = Config(turns=10)
    cells = [
        replace(base, task=module.NAME, width=width)
        for module in (crossing, nested_spheres, sines, ou)
        for width in sorted(module.LEARNING_RATES)
    ]
    pairs = [(name, batch) for name in ("mnist", "cifar10", "svhn") for batch in (16, 32)] + [("mnist", 256)]
    return cells + [replace(_image(base, *pair), width=width) for pair in pairs for width in images.CHANNELS]


def _image(base: Config, dataset: str, batch: int) -> Config:
    return replace(base, task="images", dataset=dataset, batch=batch, width=images.CHANNELS[0])


def settings_of(config: Config, method: str) -> RunConfig:
    """The run of the task whose steps one method is to take."""
    module = TASKS[config.task]
    chosen = {"dataset": config.dataset, "batch": config.batch}
    base = module.Config(**{name: setting for name, setting in chosen.items() if setting is not None})
    lr = module.paper_rate(base, config.width)
    run: RunConfig = replace(base, method=method, width=config.width, seed=config.seed, device=config.device, lr=lr)
    return run


class Contestant:
    """A method with a model of its own, whose weights are set back before every step."""

    def __init__(self, task: Task, weights: dict[str, Tensor]) -> None:
        self.task, self.weights = task, weights
        self.model = task.model.to(task.device)
        self.model.load_state_dict(weights)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=task.lr)
        self.spans: list[Span] = []
        self.facts: dict[str, Any] = {}

    def first(self, batch: Batch) -> Tensor:
        """One gradient that is not timed: what it counts goes into the facts. Returns it as one vector."""
        counts: list[Any] = []

        def loss(model: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Any]:
            value, stats = self.task.loss(model, batch, generator)
            counts.append(stats)
            return value, stats

        found = gradient(self.model.train(), loss, batch)
        if counts[0] is not None:
            self.facts["per_gradient"] = {name: getattr(counts[0], name, 0) or 0 for name in COUNTS}
        return found

    def step(self, batch: Batch, seed: int) -> None:
        self.model.load_state_dict(self.weights)
        self.model.train()
        noise = torch.Generator().manual_seed(seed)
        watch = Stopwatch()
        self.optimiser.zero_grad(set_to_none=True)
        loss, _ = self.task.loss(self.model, batch, noise)
        loss.backward()
        self.optimiser.step()
        float(loss.detach())  # a device has then done its work
        self.spans.append(watch.span())
        self.optimiser.zero_grad(set_to_none=True)  # what others need not carry

    def peak(self, batch: Batch) -> int:
        self.model.load_state_dict(self.weights)
        with lean():
            return peak_memory(lambda: gradient(self.model, self.task.loss, batch), self.task.device)

    def result(self) -> dict[str, Any]:
        wall, cpu = [span.wall for span in self.spans], [span.cpu for span in self.spans]
        return {
            "steps": {"seconds": wall, "cpu_seconds": cpu},
            "seconds_per_gradient": statistics.median(wall),
            "cpu_seconds_per_gradient": statistics.median(cpu),
            **self.facts,
        }


def run(config: Config, context: Context) -> dict[str, Any]:
    names = config.methods.split()
    if set(names) & set(authors.METHODS):
        authors.load(context.authors)
    weights, batches = _trained(config, context)
    first = next(batches)
    contestants, gradients, given_up = {}, {}, {}
    for name in names:
        torch.manual_seed(config.seed)
        one = Contestant(_task(config, name, context), weights)
        try:
            gradients[name] = one.first(first)
            contestants[name] = one
        except (SolveError, torch.OutOfMemoryError) as error:
            given_up[name] = f"{type(error).__name__}: {error}"
    _note_mismatch(contestants, gradients)
    line = list(contestants.values())
    shuffled = random.Random(config.seed)
    for turn in range(config.turns):
        batch = next(batches)
        for one in shuffled.sample(line, len(line)):
            one.step(batch, turn)
        spent = sum(one.spans[-1].wall for one in line)
        context.progress(Progress(turn + 1, config.turns, 0.0, spent))
    for one in line:
        one.facts["peak_memory"] = one.peak(first)
    facts: dict[str, Any] = {"parameters": sum(w.numel() for w in weights.values())}
    if context.authors is not None:
        facts["authors_code"] = authors.fingerprint(context.authors)
    return {**facts, "methods": {n: one.result() for n, one in contestants.items()}, "given_up": given_up, "final": {}}


def _note_mismatch(contestants: dict[str, Contestant], gradients: dict[str, Tensor]) -> None:
    """How far each gradient is from that of backpropagation, relatively; the SDE's own gradients are of other paths."""
    wanted = gradients.get("direct", gradients.get(TRAINER))
    for name, one in contestants.items():
        if wanted is not None and name not in ou.TORCHSDE:
            one.facts["gradient_mismatch"] = float((gradients[name] - wanted).norm() / wanted.norm())


def _task(config: Config, method: str, context: Context) -> Task:
    task: Task = TASKS[config.task].task(settings_of(config, method), context)
    return task


def _trained(config: Config, context: Context) -> tuple[dict[str, Tensor], Iterator[Batch]]:
    """Weights after the steps before the clock, and batches without end."""
    task = _task(config, TRAINER, context)
    model = task.model.to(task.device).train()
    generator = torch.Generator().manual_seed(config.seed)
    batches = (batch for _ in iter(int, 1) for batch in task.batches(generator))
    optimiser = torch.optim.Adam(model.parameters(), lr=task.lr)
    noise = torch.Generator().manual_seed(config.seed)
    for _ in range(config.before):
        optimiser.zero_grad(set_to_none=True)
        loss, _ = task.loss(model, next(batches), noise)
        loss.backward()
        optimiser.step()
    return copy.deepcopy(model.state_dict()), batches
