"""Reading records: which there are of an experiment, and numbers in them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from quadjoint.experiments import store
from quadjoint.experiments.faults import ODD_RECORD

Record = dict[str, Any]
Records = list[Record]
CLOCK = "clock"


# What statements compare; in all other settings runs of one cell must be alike.
_AXES = ("study", "width", "dataset", "batch", "times", "spacing", "cosines", "c", "rtol")


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


def clocked(records: Records, task: str) -> Records:
    """The lines of the clock on a task, split by method; of study ``clock``. What makes no sense is left out.

    Of several lines on one cell, as when the authors' code joined later, the one with most methods counts, the latest
    of such: methods are compared in the turns of one run.
    """
    cells: dict[tuple[str, ...], Record] = {}
    for record in records:
        config, methods = record["config"], record["result"].get("methods")
        if config.get("task") == task and isinstance(methods, dict):
            cell = tuple(str(config.get(name)) for name in ("dataset", "batch", "width", "seed", "device"))
            if cell not in cells or len(methods) >= len(cells[cell]["result"]["methods"]):
                cells[cell] = record
    split = []
    for record in cells.values():
        methods = record["result"]["methods"]
        shared = {"parameters": record["result"].get("parameters")}
        for method, found in methods.items():
            if isinstance(found, dict):
                config = record["config"] | {"method": method, "study": CLOCK}
                split.append(record | {"experiment": task, "config": config, "result": shared | found})
    return split


def of_study(records: Records, *studies: str) -> Records:
    return [r for r in records if r["config"].get("study") in studies]


def where(records: Records, **fields: object) -> Records:
    """The records whose configuration has these values."""
    return [r for r in records if all(r["config"].get(name) == wanted for name, wanted in fields.items())]


def methods_of(records: Records) -> list[str]:
    return list(dict.fromkeys(r["config"]["method"] for r in records))


def by(records: Records, *fields: str) -> dict[tuple[Any, ...], Records]:
    """Records grouped by fields of their configuration, in order."""
    groups: dict[tuple[Any, ...], Records] = defaultdict(list)
    for record in records:
        groups[tuple(record["config"].get(name) for name in fields)].append(record)
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
    """The seconds of a step in every repetition: of the clock's turns, or the means of a run's epochs."""
    name = "cpu_seconds" if on_one_thread(record) else "seconds"
    for group, share in (("steps", 1.0), ("curves", _epochs_a_step(record))):
        found = record["result"].get(group)
        numbers = found.get(name, found.get("seconds")) if isinstance(found, dict) else None
        if isinstance(numbers, list) and numbers and all(isinstance(x, int | float) for x in numbers):
            return [share * x for x in numbers]
    return []


def _epochs_a_step(record: Record) -> float:
    try:
        return float(record["result"]["epochs"] / record["result"]["gradients"])
    except ODD_RECORD:
        return math.nan
