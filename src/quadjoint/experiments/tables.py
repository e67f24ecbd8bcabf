"""The paper's three tables with our numbers beside them."""

from __future__ import annotations

from collections.abc import Sequence

from quadjoint.experiments.plots import Records, mean_and_deviation, of_study, ordered, value
from quadjoint.experiments.published import OU_COSINES, SINES_REGULARITY, SPHERES_C, mean

Table = tuple[str, Sequence[str], list[Sequence[object]]]


def published_tables(name: str, records: Records) -> list[Table]:
    """Caption, head and rows of each table of the paper on this experiment. Times as ratios to the first row."""
    make = {"nested-spheres": _spheres, "sines": _sines, "ou": _ou}.get(name)
    return make(records) if make else []


def _spheres(records: Records) -> list[Table]:
    ours = of_study(records, "C")
    if not ours:
        return []
    base = mean(_where(ours, "c", 1e-3), "gq-paper", "seconds_per_gradient")
    rows: list[Sequence[object]] = []
    for c, (seconds, _, accuracy, deviation) in SPHERES_C.items():
        mine = _where(ours, "c", c)
        rows.append(
            (
                f"{c:g}",
                f"{seconds / SPHERES_C[1e-3][0]:.2f}",
                _ratio(mean(mine, "gq-paper", "seconds_per_gradient"), base),
                f"{accuracy:.1f} ± {deviation:.1f}",
                _spread(mine, "test_accuracy", ".1f"),
                _spread_of(mine, "gradient_error", ".1e"),
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
    ours = of_study(records, "regularity")
    if not ours:
        return []
    methods = ordered(r["config"]["method"] for r in ours)
    rows: list[Sequence[object]] = []
    for times in (10, 50):
        for spacing in ("regular", "merged", "per-sample"):
            paper = SINES_REGULARITY.get((times, spacing))
            first = SINES_REGULARITY[times, "regular"][0]
            row: list[object] = [f"{times} {spacing}", f"{paper[0] / first:.2f}" if paper else ""]
            for method in methods:
                cell = _where(_where(ours, "times", times), "spacing", spacing)
                base = _where(_where(ours, "times", times), "spacing", "regular")
                seconds = [mean(part, method, "seconds_per_gradient") for part in (cell, base)]
                row.append(_ratio(*seconds))
            rows.append(row)
    head = ("times", "paper: GQ", *(f"ours: {m}" for m in methods))
    width = ours[0]["config"]["width"]
    caption = f"Time over that of regular times; the paper at width 1000, ours at {width}"
    return [(caption, head, rows), _sines_error(ours)]


def _sines_error(ours: Records) -> Table:
    """The error after training with regular and with irregular times."""
    rows: list[Sequence[object]] = []
    for (times, spacing), (_, _, error, deviation) in SINES_REGULARITY.items():
        mine = _where(_where(_where(ours, "times", times), "spacing", spacing), "method", "gq-paper")
        rows.append((f"{times} {spacing}", f"{error} ± {deviation}", _spread(mine, "test_mse", ".2g")))
    epochs = ours[0]["config"].get("epochs")
    caption = f"Final test MSE of gq-paper; the paper after 250 epochs, ours after {epochs}"
    return caption, ("times", "paper: MSE", "ours: MSE"), rows


def _ou(records: Records) -> list[Table]:
    ours = of_study(records, "cosines")
    rows: list[Sequence[object]] = []
    for method in ordered(r["config"]["method"] for r in ours):
        mine = [r for r in ours if r["config"]["method"] == method]
        base = mean(_where(mine, "cosines", 0), method, "seconds_per_gradient")
        for cosines, (minutes, _, kl, deviation) in OU_COSINES.items():
            cell = _where(mine, "cosines", cosines)
            rows.append(
                (
                    cosines,
                    f"{minutes / OU_COSINES[0][0]:.2f}",
                    _ratio(mean(cell, method, "seconds_per_gradient"), base),
                    f"{kl:.4f} ± {deviation:.4f}",
                    _spread(cell, "test_kl", ".4f"),
                    method,
                )
            )
    if not rows:
        return []
    head = ("cosines", "paper: time", "ours: time", "paper: KL", "ours: KL", "ours: method")
    epochs = ours[0]["config"].get("epochs")
    caption = f"Number of cosines, width 20; times over the first row; the paper after 100 epochs, ours after {epochs}"
    return [(caption, head, rows)]


def _where(records: Records, field: str, wanted: object) -> Records:
    return [r for r in records if r["config"].get(field) == wanted]


def _ratio(seconds: float | None, base: float | None) -> str:
    return f"{seconds / base:.2f}" if seconds and base else ""


def _spread(records: Records, metric: str, form: str) -> str:
    return _spread_of(records, "final", form, metric)


def _spread_of(records: Records, first: str, form: str, *rest: str) -> str:
    numbers = [value(r, first, *rest) for r in records]
    middle, deviation = mean_and_deviation(numbers)
    return "" if middle != middle else f"{middle:{form}} ± {deviation:.1g}"
