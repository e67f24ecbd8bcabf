"""Reading records: which there are of an experiment, and numbers in them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from quadjoint.experiments import store

Record = dict[str, Any]
Records = list[Record]
CLOCK = "clock"
WIDTHS = "widths"  # the study of methods over widths, which every task has; others are ablations


# What statements compare, or what is a method's own; in all other settings runs of one cell must be alike.
_AXES = ("study", "width", "dataset", "batch", "times", "spacing", "cosines", "c", "rtol", "tightest")


def of_experiment(results: store.Results, name: str) -> Records:
    """The finished runs of an experiment, and what the clock measured on its task: a record for each method."""
    return [*_alike(results.of(name))[0], *clocked(results.of(CLOCK), name)]


def set_apart(results: store.Results, name: str) -> Records:
    """Finished runs that are not compared, as most others of their cell have other settings, such as more epochs."""
    return _alike(results.of(name))[1]


def _alike(records: Records) -> tuple[Records, Records]:
    """Those that have the settings of most runs of their cell, and the others."""
    found: dict[str, list[str]] = defaultdict(list)
    for record in records:
        cell, others = _settings(record)
        found[cell].append(others)
    common = {cell: max(reversed(others), key=others.count) for cell, others in found.items()}  # the latest of equals
    kept: Records = []
    apart: Records = []
    for record in records:
        cell, others = _settings(record)
        (kept if others == common[cell] else apart).append(record)
    return kept, apart


def _settings(record: Record) -> tuple[str, str]:
    """The cell that a run belongs to, whatever its method and seed, and its other settings."""
    config = record["config"]
    others = sorted((name, str(found)) for name, found in config.items() if name not in (*_AXES, "method", "seed"))
    return str([config.get(name) for name in _AXES]), str(others)


def clock_of(study: str = WIDTHS) -> str:
    """The study to which the clock's lines belong that time what a study trains.

    >>> clock_of(), clock_of("C")
    ('clock', 'clock of C')
    """
    return CLOCK if study == WIDTHS else f"{CLOCK} of {study}"


def clocked(records: Records, task: str) -> Records:
    """The lines of the clock on a task, split by contestant; of study ``clock``, or of that of an ablation.

    What makes no sense is left out. Of several lines on one cell, as when the authors' code joined later, the one with
    most contestants counts, the latest of such: they are compared in the turns of one run.
    """
    cells: dict[tuple[str, ...], Record] = {}
    for record in records:
        config, contestants = record["config"], record["result"].get("methods")
        if config.get("task") == task and isinstance(contestants, dict):
            cell = tuple(str(config.get(name)) for name in ("study", "dataset", "batch", "width", "seed", "device"))
            if cell not in cells or len(contestants) >= len(cells[cell]["result"]["methods"]):
                cells[cell] = record
    split = []
    for record in cells.values():
        shared = {"parameters": record["result"].get("parameters")}
        study = clock_of(record["config"].get("study", WIDTHS))
        for name, found in record["result"]["methods"].items():
            settings = found.get("settings", {}) if isinstance(found, dict) else None
            if isinstance(settings, dict):
                config = record["config"] | {"method": name} | settings | {"study": study}
                split.append(record | {"experiment": task, "config": config, "result": shared | found})
    return split


def of_study(records: Records, *studies: str) -> Records:
    return [r for r in records if r["config"].get("study") in studies]


def timed_study(records: Records, study: str) -> Records:
    """What times of an ablation are taken from: the clock's lines on it if there are any, else training."""
    return of_study(records, clock_of(study)) or of_study(records, study)


def widest(records: Records) -> Records:
    """Those of the largest width: an ablation is of one model."""
    width = max((r["config"]["width"] for r in records), default=None)
    return where(records, width=width)


def where(records: Records, **fields: object) -> Records:
    """The records whose configuration has these values."""
    return [r for r in records if all(r["config"].get(name) == wanted for name, wanted in fields.items())]


def methods_of(records: Records) -> list[str]:
    return list(dict.fromkeys(r["config"]["method"] for r in records))


def by(records: Records, *fields: str) -> dict[tuple[Any, ...], Records]:
    """Records grouped by fields of their configuration, in order."""
    return _grouped(records, lambda config: tuple(config.get(name) for name in fields))


def by_size(records: Records) -> dict[tuple[Any, ...], Records]:
    """Grouped by data set, batch and width; the batch is an axis of images alone, and None elsewhere."""

    def size(config: dict[str, Any]) -> tuple[Any, ...]:
        dataset = config.get("dataset")
        return dataset, None if dataset is None else config.get("batch"), config.get("width")

    return _grouped(records, size)


def _grouped(records: Records, key: Callable[[dict[str, Any]], tuple[Any, ...]]) -> dict[tuple[Any, ...], Records]:
    groups: dict[tuple[Any, ...], Records] = defaultdict(list)
    for record in records:
        groups[key(record["config"])].append(record)
    return dict(sorted(groups.items(), key=lambda item: tuple(map(_rank, item[0]))))


def _rank(setting: Any) -> tuple[bool, float, str]:
    """Numbers by size, then words by the alphabet."""
    number = isinstance(setting, int | float)
    return not number, setting if number else 0.0, str(setting)


def value(record: Record, *path: str) -> float | None:
    """A number deep in the result, or None where it is missing."""
    node: Any = record["result"]
    for name in path:
        node = node.get(name) if isinstance(node, dict) else None
    return node if isinstance(node, int | float) and not isinstance(node, bool) else None


def mean_and_deviation(values: Sequence[float | None]) -> tuple[float, float]:
    """Over the seeds, as a sample of all that could be drawn; the deviation of a single value is zero.

    >>> mean_and_deviation([1.0, 3.0, 5.0])
    (3.0, 2.0)
    """
    numbers = [v for v in values if isinstance(v, int | float)]
    if not numbers:
        return math.nan, 0.0
    return statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0


def on_one_thread(record: Record) -> bool:
    """Whether the time of the run's thread is the time of the computation."""
    environment = record.get("environment")
    threads = environment.get("threads") if isinstance(environment, dict) else None
    return record["config"].get("device", "cpu") == "cpu" and threads in (None, 1)


def step_seconds(record: Record) -> float | None:
    """Seconds of a training step: those for which its thread had a processor if recorded, else of the wall clock."""
    spent = value(record, "cpu_seconds_per_gradient") if on_one_thread(record) else None
    return value(record, "seconds_per_gradient") if spent is None else spent


def repeated_seconds(record: Record) -> list[float]:
    """The seconds of a step in every turn of the clock; none of a trained run."""
    return _series(record, "steps")


def _series(record: Record, group: str) -> list[float]:
    """Seconds of the clock's steps or of a run's epochs; none if they make no sense."""
    name = "cpu_seconds" if on_one_thread(record) else "seconds"
    found = record["result"].get(group)
    numbers = found.get(name, found.get("seconds")) if isinstance(found, dict) else None
    return numbers if isinstance(numbers, list) and all(isinstance(x, int | float) for x in numbers) else []


def epoch_seconds(records: Records, runs: Records) -> list[list[float]]:
    """Seconds of every epoch of trained runs: at the pace of the clock if it has timed all of them, else as recorded.

    Runs that share a machine slow each other down, also in the time of the processor; the clock's steps were taken
    alone, in turns.
    """
    clocked = by_size(of_study(records, CLOCK))
    paces = [_pace(clocked, run) for run in runs]
    if all(paces):
        return [[pace] * run["result"]["epochs"] for run, pace in zip(runs, paces, strict=True) if pace]
    return [_series(run, "curves") for run in runs]


def _pace(clocked: dict[tuple[Any, ...], Records], run: Record) -> float | None:
    """Seconds of an epoch of the run by the clock's step of its method and size."""
    (size,) = by_size([run])
    mine = where(clocked.get(size, []), method=run["config"]["method"])
    step = step_seconds(mine[0]) if mine else None
    return step * run["result"]["gradients"] / run["result"]["epochs"] if step else None


def with_solutions(records: Records, method: str) -> Record | None:
    """The run of a method whose learnt solutions are shown: of the paper's width or the nearest, the first seed."""
    chosen = [r for r in where(of_study(records, WIDTHS), method=method) if "solutions" in r["result"]]
    return min(chosen, key=lambda r: (abs(r["config"]["width"] - 20), r["config"]["seed"]), default=None)
