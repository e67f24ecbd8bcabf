"""The paper's three tables with our numbers beside them, the authors' code beside ours, and every cell in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from quadjoint.experiments import store
from quadjoint.experiments.claims import IMAGES
from quadjoint.experiments.claims.checks_time import as_ratio, log_ratio, time_ratio
from quadjoint.experiments.plots import STYLES, ordered
from quadjoint.experiments.published import OU_COSINES, SINES_REGULARITY, SPHERES_C
from quadjoint.experiments.records import (
    CLOCK,
    Records,
    by,
    by_size,
    of_experiment,
    of_study,
    step_seconds,
    timed_study,
    value,
    where,
    widest,
)
from quadjoint.experiments.verdicts import plain, short, spread

TASKS = ("crossing", "nested-spheres", "sines", "ou", "images")
Table = tuple[str, Sequence[str], list[Sequence[object]]]


def published_tables(name: str, records: Records) -> list[Table]:
    """Caption, head and rows of each table of the paper on this experiment. Times as ratios to the first row."""
    make = {"nested-spheres": _spheres, "sines": _sines, "ou": _ou}.get(name)
    return make(records) if make else []


def _spheres(records: Records) -> list[Table]:
    ours, timed = widest(of_study(records, "C")), widest(timed_study(records, "C"))
    if not ours:
        return []
    base = where(timed, c=1e-3, method="gq-paper")
    rows: list[Sequence[object]] = []
    for c, (seconds, _, accuracy, deviation) in SPHERES_C.items():
        mine = where(ours, c=c)
        rows.append(
            (
                short(c),
                f"{seconds / SPHERES_C[1e-3][0]:.2f}",
                _ratio(where(timed, c=c, method="gq-paper"), base),
                f"{accuracy:.1f} ± {deviation:.1f}",
                _spread(mine, "final", "test_accuracy"),
                _spread(mine, "gradient_error"),
            )
        )
    head = ("C", "paper: time", "ours: time", "paper: accuracy", "ours: accuracy", "ours: gradient error")
    width, epochs = ours[0]["config"]["width"], ours[0]["config"].get("epochs")
    caption = (
        f"Effect of C on gq-paper; the paper at width 1500 after 100 epochs, ours at {width} after {epochs}; "
        "times over the first row"
    )
    return [(caption, head, rows)]


def _sines(records: Records) -> list[Table]:
    ours, timed = widest(of_study(records, "regularity")), widest(timed_study(records, "regularity"))
    if not ours:
        return []
    methods = ordered(r["config"]["method"] for r in timed)
    rows: list[Sequence[object]] = []
    for times in (10, 50):
        for spacing in ("regular", "merged", "per-sample"):
            paper = SINES_REGULARITY.get((times, spacing))
            first = SINES_REGULARITY[times, "regular"][0]
            row: list[object] = [f"{times} {spacing}", f"{paper[0] / first:.2f}" if paper else ""]
            for method in methods:
                pair = [where(timed, times=times, spacing=s, method=method) for s in (spacing, "regular")]
                row.append(_ratio(*pair))
            rows.append(row)
    head = ("times", "paper: GQ", *(f"ours: {m}" for m in methods))
    width = ours[0]["config"]["width"]
    caption = f"Time over that of regular times; the paper at width 1000, ours at {width}"
    return [(caption, head, rows), _sines_error(ours)]


def _sines_error(ours: Records) -> Table:
    """The error after training with regular and with irregular times, of the paper's method and of direct.

    Direct also on the seeds of the paper's method alone, if it has more.
    """
    paper, direct = where(ours, method="gq-paper"), where(ours, method="direct")
    seeds = {r["config"]["seed"] for r in paper}
    common = [r for r in direct if r["config"]["seed"] in seeds]
    few = bool(common) and len(common) < len(direct)
    columns = {"gq-paper": paper, **({"direct, the same seeds": common} if few else {}), "direct": direct}
    columns = {name: records for name, records in columns.items() if records}
    rows: list[Sequence[object]] = []
    for (times, spacing), (_, _, error, deviation) in SINES_REGULARITY.items():
        errors = [_spread(where(c, times=times, spacing=spacing), "final", "test_mse") for c in columns.values()]
        rows.append((f"{times} {spacing}", f"{error} ± {deviation}", *errors))
    epochs = ours[0]["config"].get("epochs")
    caption = (
        f"Final test MSE; the paper’s GQ at width 1000 after 250 epochs, ours at {ours[0]['config']['width']} after "
        f"{epochs}; without ± it is one seed"
    )
    return caption, ("times", "paper: GQ", *(f"ours: {name}" for name in columns)), rows


def _ou(records: Records) -> list[Table]:
    ours, timed = widest(of_study(records, "cosines")), widest(timed_study(records, "cosines"))
    if not ours:
        return []
    trained, clocked = (ordered(r["config"]["method"] for r in part) for part in (ours, timed))
    rows: list[Sequence[object]] = []
    for cosines, (minutes, _, kl, deviation) in OU_COSINES.items():
        here = where(ours, cosines=cosines)
        rows.append(
            (
                cosines,
                f"{minutes / OU_COSINES[0][0]:.2f}",
                *(_ratio(*(where(timed, cosines=n, method=m) for n in (cosines, 0))) for m in clocked),
                f"{kl:.4f} ± {deviation:.4f}",
                *(_spread(where(here, method=m), "final", "test_kl") for m in trained),
            )
        )
    times, kls = (tuple(f"ours: {words}, {m}" for m in part) for words, part in (("time", clocked), ("KL", trained)))
    head = ("cosines", "paper: time", *times, "paper: KL", *kls)
    epochs = ours[0]["config"].get("epochs")
    caption = (
        f"Number of cosines, width {ours[0]['config']['width']}; times over the first row; the paper’s GQ after 100 "
        f"epochs, ours after {epochs}"
    )
    return [(caption, head, rows)]


def _ratio(records: Records, base: Records) -> str:
    """How many times as long a step takes, as the statements have it."""
    found = time_ratio(base, records, [])
    return "" if found is None else f"{math.exp(found.middle):.2f}"


def _spread(records: Records, *path: str) -> str:
    found = [value(r, *path) for r in records]
    return spread([number for number in found if number is not None])


def _clock_cells(results: store.Results) -> Iterator[tuple[str, Records]]:
    """What the clock timed, task by task and size by size, each with its label."""
    for task in TASKS:
        for (dataset, batch, width), group in by_size(of_study(of_experiment(results, task), CLOCK)).items():
            yield size_label(task, dataset, batch, width), group


def authors_table(results: store.Results) -> Table | None:
    """What the authors' GQ gains over their adjoint, and ours over ours; None if theirs did not run."""
    rows: list[Sequence[object]] = []
    for label, group in _clock_cells(results):
        theirs, ours = log_ratio(group, "paper:gq", "paper:adjoint"), log_ratio(group, "gq-paper", "adjoint")
        quicker = log_ratio(group, "gq-paper", "paper:gq")
        adjoint = log_ratio(group, "adjoint", "paper:adjoint")
        if quicker is not None:
            ratios = ("–" if found is None else as_ratio(found) for found in (theirs, ours, quicker, adjoint))
            rows.append((label, *ratios))
    head = ("task", "their adjoint / their GQ", "our adjoint / gq-paper", "their GQ / gq-paper", "their adjoint / ours")
    caption = "Times of the authors’ own code and of the same methods here, in turns from the same weights."
    return (caption, head, rows) if rows else None


def authors_words(results: store.Results) -> str:
    """How long their methods take over ours at the tasks' sizes, in a sentence; nothing if theirs did not run."""
    adjoint, gq = _range(results, "adjoint", "paper:adjoint"), _range(results, "gq-paper", "paper:gq")
    words = [f"their adjoint takes {adjoint} times as long as ours"] if adjoint else []
    words += [f"their GQ {'' if adjoint else 'takes '}{gq} times as long as gq-paper"] if gq else []
    return f"From size to size {', '.join(words)}." if words else ""


def authors_gain(results: store.Results) -> str:
    """How long the authors' adjoint takes over their GQ, in words; nothing if they did not run."""
    found = _range(results, "paper:gq", "paper:adjoint")
    return f"by the authors’ own code their adjoint takes {found} times as long as their GQ" if found else ""


def _range(results: store.Results, first: str, second: str) -> str:
    """The second method's time over the first's, from the smallest to the largest of all tasks and sizes."""
    logs = [found.middle for _, group in _clock_cells(results) if (found := log_ratio(group, first, second))]
    ends = dict.fromkeys(plain(math.exp(end)) for end in (min(logs), max(logs))) if logs else ()
    return " to ".join(ends)


def size_label(task: str, dataset: Any, batch: Any, width: Any) -> str:
    """A task at one size, in words."""
    if task == "images":
        return f"{IMAGES.get(str(dataset), dataset)}, batch {batch}, {width} channels"
    names = {"nested-spheres": "spheres", "ou": "OU"}
    return f"{names.get(task, task)}, width {width}"


def all_cells(records: Records) -> tuple[Sequence[str], list[Sequence[object]]] | None:
    """Head and rows: every setting, width and method with its numbers."""
    timed = [r for r in records if step_seconds(r)]
    if not timed:
        return None
    fields = [f for f in ("study", "dataset", "batch", "times", "spacing", "cosines", "c") if _varies(timed, f)]
    metrics = [
        m for m in ("test_accuracy", "test_mse", "test_kl") if any(value(r, "final", m) is not None for r in timed)
    ]
    numbers = ("s per step", "wall s", "backward evals", "peak MiB", "gradient error", "mismatch")
    head = (*fields, "width", "method", "runs", *numbers, *metrics)
    groups = sorted(by(timed, *fields, "width", "method").items(), key=_order)
    clocked = any("steps" in r["result"] for r in timed)  # then its peaks count: all methods from the same weights
    return head, [_row(key, group, metrics, clocked=clocked) for key, group in groups]


def _varies(records: Records, field: str) -> bool:
    return len({str(r["config"].get(field)) for r in records}) > 1


def _order(item: tuple[tuple[Any, ...], Records]) -> tuple[Any, ...]:
    *cell, width, method = item[0]
    return (*map(str, cell), width, ordered([*STYLES, method]).index(method))


def _row(key: tuple[Any, ...], group: Records, metrics: list[str], *, clocked: bool) -> Sequence[object]:
    peaks = [peak / 2**20 for r in group if (peak := value(r, "peak_memory")) and ("steps" in r["result"]) == clocked]
    steps = [seconds for r in group if (seconds := step_seconds(r))]
    cells = [
        spread(steps),
        _spread(group, "seconds_per_gradient"),
        _spread(group, "per_gradient", "backward_evaluations"),
        plain(sum(peaks) / len(peaks), 3) if peaks else "",
        _spread(group, "gradient_error"),
        _spread(group, "gradient_mismatch"),
        *(_spread(group, "final", metric) for metric in metrics),
    ]
    names = ["" if cell is None else short(cell) if isinstance(cell, float) else str(cell) for cell in key]
    return [*names, len(group), *cells]
