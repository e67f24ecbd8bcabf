"""How long runs will take: from recorded runs, scaled to the size of a run and to the speed of this machine.

``seconds.json`` has what runs of every kind took on one core; their steps without waiting for a processor that other
runs had. It is made from a finished sweep by

    python -m quadjoint.experiments.estimate results/evening
"""

from __future__ import annotations

import contextlib
import heapq
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from quadjoint.experiments import store
from quadjoint.experiments.clock import VARIED
from quadjoint.experiments.config import as_dict
from quadjoint.experiments.execute import Job
from quadjoint.experiments.faults import ODD_RECORD
from quadjoint.experiments.records import CLOCK, clocked, step_seconds, value

TABLE = Path(__file__).with_name("seconds.json")
_ROWS = ("points", "curves", "starts", "round_images", "train_images")  # what an experiment calls its training samples
_IMAGES = {"mnist": 60_000, "cifar10": 50_000, "svhn": 73_257}
_NUMBERS = {"width": 1.0, "batch": 1.0, "times": 1.0, "cosines": 1.0, "rtol": 1.0, "c": 0.3}  # and how much they matter
_WORDS = ("method", "task", "dataset", "spacing")
_KNEES = {
    "images": 50.0,
    "memory": math.inf,
    "toy-gradient": math.inf,
    "integration": math.inf,
}  # widths from which the weights are the cost
_TESTED = 10_000  # images of a test set
# What a step by the authors' code takes, before it was ever timed: times a step of ours.
_THEIRS = {"paper:gq": ("gq-paper", 1.5), "paper:adjoint": ("adjoint", 3.0), "paper:seminorm": ("seminorm", 3.0)}
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """What runs with these settings took: a training step, what is done once, and an evaluation."""

    experiment: str
    settings: dict[str, Any]
    step: float
    once: float
    evaluation: float


def expected(experiment: str, settings: Settings) -> float | None:
    """Seconds of a run by the nearest recorded one, on the machine of the record; None for an unknown experiment."""
    if experiment == CLOCK:
        return _turns(settings)
    near = _nearest(experiment, settings)
    if near is None:
        return None
    steps = _epochs_and_steps(settings)[1]
    tested = (settings.get("test_images") or _TESTED) / (near.settings.get("test_images") or _TESTED)
    return _scale(experiment, near, settings) * (near.step * steps + near.once) + tested * near.evaluation * _evaluated(
        settings
    )


def _turns(settings: Settings) -> float:
    """A run of the clock: steps to train, then every method a step to warm up, one for its memory and its turns."""
    total = settings["before"] * _step(settings, "discrete")
    for method in settings["methods"].split():
        for varied in VARIED[settings["study"]]:
            total += (settings["turns"] + 3) * _step({**settings, **varied}, method)
    return total


def _step(settings: Settings, method: str) -> float:
    """Seconds of one step of a method in a run of the clock: as the clock had it, else as runs of its task had it."""
    task = settings["task"]
    cell = {name: found for name, found in settings.items() if found is not None} | {"method": method}
    near = _nearest(CLOCK, cell)
    if near is not None and all(near.settings.get(name) == cell[name] for name in ("task", "method")):
        return _scale(task, near, cell) * near.step
    ours, factor = _THEIRS.get(method, (method, 1.0))
    near = _nearest(task, cell | {"method": ours})
    return 0.0 if near is None else factor * _scale(task, near, cell) * near.step


def _nearest(experiment: str, settings: Settings) -> Cell | None:
    cells = [cell for cell in _table() if cell.experiment == experiment]
    return min(cells, key=lambda cell: _distance(cell.settings, settings), default=None)


def _scale(experiment: str, near: Cell, settings: Settings) -> float:
    """How much longer a step takes than in the nearest record."""
    scale = settings["batch"] / near.settings["batch"] if "batch" in settings and "batch" in near.settings else 1.0
    knee = _KNEES.get(experiment, 300.0)
    return scale * (1 + (settings["width"] / knee) ** 2) / (1 + (near.settings["width"] / knee) ** 2)


def _epochs_and_steps(settings: Settings) -> tuple[int, int]:
    epochs = settings.get("epochs", 1)
    rows = next((settings[name] for name in _ROWS if settings.get(name)), _IMAGES.get(settings.get("dataset", ""), 1))
    return epochs, epochs * math.ceil(rows / (settings.get("batch") or rows))


def _evaluated(settings: Settings) -> int:
    """How many times a run evaluates: after every epoch, but in the study of cosines only at the end."""
    return 1 if settings.get("study") == "cosines" else settings.get("epochs", 1)


def _distance(one: Settings, other: Settings) -> float:
    """Words that differ are far apart, the method furthest; numbers by their ratio."""
    far = sum(100.0 if name == "method" else 10.0 for name in _WORDS if one.get(name) != other.get(name))
    for name, weight in _NUMBERS.items():
        if name in one and name in other:
            shift = 1.0 if name == "cosines" else 0.0  # there may be none
            far += weight * abs(math.log((one[name] + shift) / (other[name] + shift)))
    return far


@dataclass
class Estimate:
    """Expected seconds of runs, corrected by what other runs took here: the more alike, the more they count.

    ``taken`` has, for every kind of run, how many there were, their seconds and what the table expects of them.
    """

    taken: dict[tuple[Any, ...], tuple[int, float, float]] = field(default_factory=dict)

    @staticmethod
    def of(records: Iterable[Mapping[str, Any]]) -> Estimate:
        """The estimate that these runs allow."""
        estimate = Estimate()
        for record in records:
            estimate.learn(record)
        return estimate

    def learn(self, record: Mapping[str, Any]) -> None:
        """Take a run into account; one that gave up, or whose record makes no sense, tells nothing."""
        experiment, settings, seconds = record["experiment"], record["config"], record.get("seconds")
        if record["status"] != "done" or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            return
        with contextlib.suppress(*ODD_RECORD):
            by_table = expected(experiment, settings) or seconds
            for kind in _kinds(experiment, settings):
                count, actual, table = self.taken.get(kind, (0, 0.0, 0.0))
                self.taken[kind] = count + 1, actual + seconds, table + by_table

    def seconds(self, job: Job) -> float:
        """What a run will take; of an experiment without records, what a run took on average."""
        by_table, kinds = _known(job)
        for kind in kinds:
            if kind in self.taken:
                count, actual, table = self.taken[kind]
                return actual / count if by_table is None else by_table * actual / table
        return 0.0 if by_table is None else by_table


@lru_cache(maxsize=100_000)
def _known(job: Job) -> tuple[float | None, list[tuple[Any, ...]]]:
    settings = as_dict(job.config)
    return expected(job.experiment, settings), _kinds(job.experiment, settings)


def _kinds(experiment: str, settings: Settings) -> list[tuple[Any, ...]]:
    """The groups that a run belongs to, the narrowest first."""
    method, width, study = (settings.get(name) for name in ("method", "width", "study"))
    return [(experiment, method, width, study), (experiment, method), (experiment,), ()]


def makespan(running: Iterable[float], waiting: Iterable[float], workers: int, alone: Iterable[float] = ()) -> float:
    """Seconds until all is done: each worker takes the next run when it is free, then come those that run alone.

    >>> makespan([5.0], [3.0, 3.0], workers=2), makespan([], [3.0, 3.0], workers=2, alone=[1.0, 1.0])
    (6.0, 5.0)
    """
    free = list(running)
    free += [0.0] * (workers - len(free))
    heapq.heapify(free)
    for seconds in waiting:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free) + math.fsum(alone)


def time_left(running: Iterable[float], waiting: Iterable[Job], estimate: Estimate, workers: int) -> float:
    """Seconds until the last of the waiting runs ends, after those that are running for so long."""
    seconds = [(job.alone, estimate.seconds(job)) for job in waiting]
    beside, apart = ([taken for alone, taken in seconds if alone is wanted] for wanted in (False, True))
    return makespan(running, beside, workers, apart)


@lru_cache(maxsize=1)
def _table() -> tuple[Cell, ...]:
    return tuple(Cell(**row) for row in json.loads(TABLE.read_text()))


def summarise(records: Iterable[Mapping[str, Any]]) -> list[Cell]:
    """One cell for all runs that differ in their seeds alone, and one for every method of the clock."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for record in map(dict, records):
        split = clocked([record], record["config"]["task"]) if record["experiment"] == CLOCK else [record]
        for part in split:
            kind = (record["experiment"], *_settings(part["config"]).items())
            groups[kind].append(part)
    evaluation = _evaluations(groups)
    return [_cell(kind[0], dict(kind[1:]), group, evaluation[_without_method(kind)]) for kind, group in groups.items()]


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    names = (*_WORDS, *_NUMBERS, "test_images")
    return {name: config[name] for name in names if config.get(name) is not None}


def _without_method(kind: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(part for part in kind if part[0] != "method")


def _evaluations(groups: Mapping[tuple[Any, ...], list[dict[str, Any]]]) -> dict[tuple[Any, ...], float]:
    """Seconds of an evaluation, which is the same for all methods: what was recorded, else the least that remains."""
    least: dict[tuple[Any, ...], float] = {}
    for kind, group in groups.items():
        for record in group:
            found = record["result"].get("curves", {}).get("evaluation_seconds")
            each = _mean(found) if found else _rest(record) / _epochs_and_steps(record["config"])[0]
            cell = _without_method(kind)
            least[cell] = min(each, least.get(cell, math.inf))
    return least


def _rest(record: dict[str, Any]) -> float:
    """What a run did besides training; the clock's lines have steps alone."""
    if "task" in record["config"]:
        return 0.0
    steps = _epochs_and_steps(record["config"])[1]
    return max(0.0, float(record["seconds"]) - (value(record, "seconds_per_gradient") or 0.0) * steps)


def _cell(experiment: str, settings: dict[str, Any], group: list[dict[str, Any]], evaluation: float) -> Cell:
    step = _mean(step_seconds(record) or 0.0 for record in group)
    each = evaluation if step else 0.0  # nothing is trained where there is no step
    once = [max(0.0, _rest(record) - each * _evaluated(record["config"])) for record in group]
    return Cell(experiment, settings, step=_short(step), once=_short(_mean(once)), evaluation=_short(each))


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


def _short(number: float) -> float:
    return float(f"{number:.3g}")


if __name__ == "__main__":
    done = [r for r in store.read(Path(sys.argv[1])).records if r["status"] == "done"]
    rows = ",\n".join(json.dumps(cell.__dict__) for cell in summarise(done))
    TABLE.write_text(f"[\n{rows}\n]\n")
    print(f"{TABLE}: {len(_table())} kinds of runs")
