"""The time of a training step: every method on the same weights and the same batches, in turns.

Trained runs are no fair clock: after a few epochs methods have different weights, on which solves differ in length, and
one run may meet a busier machine than the next. Here the weights are those after ``before`` steps of training with the
exact gradient; in every turn each method takes one step from them (forward, backward, optimiser) on the batch of that
turn, and nobody always comes after the same neighbour. The settings of an ablation are timed in the same way.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from quadjoint.experiments import authors, crossing, images, nested_spheres, ou, sines
from quadjoint.experiments import config as shared
from quadjoint.experiments.config import Choice, RunConfig
from quadjoint.experiments.contest import Contestant, Line, endless
from quadjoint.experiments.records import WIDTHS
from quadjoint.experiments.training import Context, Progress, Task

NAME = "clock"
IN_TURNS = "turns"  # what stands for the method of a run that has them all
METHODS = (*shared.METHODS, *ou.TORCHSDE, *authors.METHODS)
# The paper holds its method against the SDE's own gradients there, not against the adjoints of the ODE.
OTHERS = {"ode": ou.TORCHSDE, "ou": ("adjoint", "seminorm", "paper:adjoint", "paper:seminorm")}
TASKS: dict[str, Any] = {module.NAME: module for module in (nested_spheres, sines, images, ou, crossing)}
TRAINER = "discrete"  # makes the weights
# The settings that an ablation varies, the task that it is of, and the methods that take part.
VARIED: dict[str, list[dict[str, Any]]] = {
    WIDTHS: [{}],
    "C": [{"c": c} for c in nested_spheres.ABLATION_C],
    "regularity": sines.KINDS,
    "cosines": [{"cosines": count} for count in ou.COSINES],
}
ABLATIONS = {
    "C": ("nested-spheres", ("gq-paper",)),
    "regularity": ("sines", shared.METHODS),
    "cosines": ("ou", ("direct", "gq-paper", "gq")),
}


@dataclass(frozen=True)
class Config(RunConfig):
    """One task at one width, all methods; with every setting of an ablation, if the study is one."""

    method: str = IN_TURNS
    task: str = "crossing"
    study: str = WIDTHS
    dataset: str | None = None  # and the batch size, of images alone
    batch: int | None = None
    methods: str = " ".join(shared.METHODS)
    turns: int = 10
    before: int = 100  # training steps before the first turn


def grid(choice: Choice) -> list[Config]:
    """The cells of the preset, each with the methods that were chosen of those it knows, then the ablations."""
    cells = {"quick": _quick, "evening": _evening, "paper": _paper}[choice.preset]()
    if choice.widths is not None:
        cells = list(dict.fromkeys(replace(cell, width=width) for cell in cells for width in choice.widths))
    made = []
    for cell in [*cells, *_ablations(choice, cells)]:
        methods = [m for m in choice.pick_methods(METHODS) if m in _contestants(cell, choice)]
        seed = choice.seeds[0] if choice.seeds else 0
        if methods:
            made.append(replace(cell, methods=" ".join(methods), seed=seed, device=choice.device))
    return made


def _contestants(cell: Config, choice: Choice) -> Sequence[str]:
    """The methods that a cell knows."""
    if cell.study != WIDTHS:
        return ABLATIONS[cell.study][1]
    left_out = OTHERS["ou" if cell.task == "ou" else "ode"]
    return [m for m in METHODS if m not in left_out and (choice.authors or m not in authors.METHODS)]


def _ablations(choice: Choice, cells: list[Config]) -> list[Config]:
    """One cell for each ablation, at the width at which the preset trains it, from the weights of the cell there."""
    widths = {
        "C": max(nested_spheres.PLANS[choice.preset].study),
        "regularity": max(sines.PLANS[choice.preset].study),
        "cosines": ou.COSINES_WIDTH,
    }
    made = []
    for study, (task, _) in ABLATIONS.items():
        width = widths[study] if choice.widths is None else max(choice.widths)
        like = next(
            (cell for cell in cells if (cell.task, cell.width) == (task, width)), Config(before=cells[0].before)
        )
        made.append(replace(like, task=task, study=study, width=width, turns=max(5, cells[0].turns)))
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
    cells += [replace(base, task="ou", width=width) for width in (5, 20, 50, 100)]
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


def settings_of(config: Config, method: str, varied: Mapping[str, Any]) -> RunConfig:
    """The run of the task whose steps one method is to take."""
    module = TASKS[config.task]
    chosen = {"dataset": config.dataset, "batch": config.batch}
    base = module.Config(**{name: setting for name, setting in chosen.items() if setting is not None}, **varied)
    lr = module.paper_rate(base, config.width)
    run: RunConfig = replace(base, method=method, width=config.width, seed=config.seed, device=config.device, lr=lr)
    return run


def run(config: Config, context: Context) -> dict[str, Any]:
    methods = config.methods.split()
    if set(methods) & set(authors.METHODS):
        authors.load(context.authors)
    weights = _trained(config, context)
    line = Line(_line_up(config, context, methods, weights))
    gradients = line.each(Contestant.first)
    if config.study == WIDTHS:
        _note_mismatch(line.contestants, gradients)
    shuffled = random.Random(config.seed)
    for turn in range(config.turns):
        order = shuffled.sample(list(line.contestants), len(line.contestants))
        line.each(methodcaller("step", turn), order)
        spent = sum(one.spans[-1].wall for one in line.contestants.values())
        context.progress(Progress(turn + 1, config.turns, 0.0, spent))
    line.each(Contestant.weigh)
    facts: dict[str, Any] = {"parameters": _parameters(line)}
    if context.authors is not None:
        facts["authors_code"] = authors.fingerprint(context.authors)
    results = {name: one.result() for name, one in line.contestants.items()}
    return {**facts, "methods": results, "given_up": line.given_up, "final": {}}


def _line_up(
    config: Config, context: Context, methods: Sequence[str], weights: dict[str, Tensor]
) -> dict[str, Contestant]:
    """By name; the settings that an ablation varies are part of it."""
    made = {}
    for method in methods:
        for varied in VARIED[config.study]:
            name = " ".join([method, *(f"{key}={setting}" for key, setting in varied.items())])
            torch.manual_seed(config.seed)
            settings = {"method": method, **varied} if varied else {}
            made[name] = Contestant(_task(config, context, method, varied), weights, settings)
    return made


def _parameters(line: Line) -> int | None:
    models = [one.model for one in line.contestants.values()]
    return sum(p.numel() for p in models[0].parameters()) if models else None


def _note_mismatch(contestants: dict[str, Contestant], gradients: dict[str, Tensor]) -> None:
    """How far each gradient is from that of backpropagation, relatively; the SDE's own gradients are of other paths."""
    wanted = gradients.get("direct", gradients.get(TRAINER))
    for name, one in contestants.items():
        if wanted is not None and name not in ou.TORCHSDE:
            one.facts["gradient_mismatch"] = float((gradients[name] - wanted).norm() / wanted.norm())


def _task(config: Config, context: Context, method: str, varied: Mapping[str, Any]) -> Task:
    task: Task = TASKS[config.task].task(settings_of(config, method, varied), context)
    return task


def _trained(config: Config, context: Context) -> dict[str, Tensor]:
    """Weights after the steps before the clock, with the settings that the task has by default."""
    task = _task(config, context, TRAINER, {})
    model, batches = task.model.to(task.device).train(), endless(task)
    optimiser = torch.optim.Adam(model.parameters(), lr=task.lr)
    noise = torch.Generator().manual_seed(config.seed)
    for _ in range(config.before):
        optimiser.zero_grad(set_to_none=True)
        loss, _ = task.loss(model, next(batches), noise)
        loss.backward()
        optimiser.step()
    return copy.deepcopy(model.state_dict())
