"""Figures of trained runs and of the clock: time, what was learnt, loss curves, costs, ablations."""

from __future__ import annotations

from typing import Any

from matplotlib.ticker import MaxNLocator

from quadjoint.experiments import authors
from quadjoint.experiments.claims.checks_time import timed
from quadjoint.experiments.plots import (
    STYLES,
    Drawing,
    Number,
    against,
    curves,
    label,
    legend,
    name_ends,
    name_settings,
    ordered,
    panels,
    spread_out,
    style,
)
from quadjoint.experiments.records import (
    CLOCK,
    WIDTHS,
    Records,
    by,
    epoch_seconds,
    mean_and_deviation,
    of_study,
    step_seconds,
    timed_study,
    value,
    where,
    widest,
)
from quadjoint.experiments.verdicts import short


def number_of(*path: str) -> Number:
    """The number at a place of the result."""
    return lambda record: value(record, *path)


def several(records: Records, field: str = "width") -> bool:
    """Whether there is more than one setting to compare."""
    return len({r["config"].get(field) for r in records}) > 1


def own(records: Records) -> Records:
    """Without the authors' code, which has figures of its own."""
    return [r for r in records if r["config"]["method"] not in authors.METHODS]


def seeds(records: Records, *fields: str) -> str:
    """How many seeds there are of each method and width, and of each setting of these fields, in words."""
    counts = {len(group) for group in by(records, "method", "width", *fields).values()}
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    if high == 1:
        return "one seed"
    return f"{high} seeds" if low == high else f"{low} to {high} seeds"


def how_timed(records: Records, *fields: str) -> str:
    """Where times come from, those of each setting of these fields."""
    turns = max((len(r["result"].get("steps", {}).get("seconds", [])) for r in records), default=0)
    if turns:
        return f"the median of {turns} steps in turns from the same weights"
    return f"the median of the epochs of training, {seeds(records, *fields)}"


def training_figure(
    records: Records, *, metric: str, metric_name: str, loss: str, log_metric: bool, task: str
) -> Drawing | None:
    """Up to four panels: time and metric against width, loss against epoch and time at the largest trained width.

    A panel that would have a single width, or a curve of one point, is left out.
    """
    clocked, trained = own(timed(records)), of_study(records, "widths")
    plans: list[tuple[str, Records]] = []
    if several(clocked):
        plans.append(("time", clocked))
    if several(trained):
        plans.append(("metric", trained))
    width = max((r["config"]["width"] for r in trained), default=None)
    largest = where(trained, width=width)
    if any(len(r["result"].get("curves", {}).get(loss, [])) > 1 for r in largest):
        plans += [("epochs", largest), ("clock", largest)]
    if not plans:
        return None
    figure, axes = panels(len(plans))
    sentences = []
    for ax, (kind, chosen) in zip(axes, plans, strict=True):
        if kind == "clock":
            sentences.append(_time_panel(ax, chosen, loss, epoch_seconds(records, chosen)))
            continue
        sentences.append(_panel(ax, kind, chosen, metric=(metric, metric_name, log_metric), loss=loss, width=width))
        name_ends(ax)
    legend(figure, axes)
    return Drawing(figure, f"{task}: {'; '.join(sentences)}. Lines that end together share a name.")


def _panel(ax: Any, kind: str, records: Records, *, metric: tuple[str, str, bool], loss: str, width: Any) -> str:
    if kind == "time":
        against(ax, records, "width", step_seconds)
        label(ax, "width", "seconds per training step", log="xy")
        name_settings(ax, records)
        return f"the time of a training step against the width ({how_timed(records)})"
    if kind == "metric":
        name, words, log = metric
        against(ax, records, "width", number_of("final", name))
        label(ax, "width", words, log="xy" if log else "x")
        name_settings(ax, records)
        return f"the {words} after training (mean and deviation, {seeds(records)})"
    curves(ax, records, loss)
    label(ax, "epoch", "test loss", log="y")
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return f"the test loss at width {width} against epochs (mean, {seeds(records)})"


def _time_panel(ax: Any, records: Records, loss: str, seconds: list[list[float]]) -> str:
    """Without names at the ends of lines, which all have the same height."""
    curves(ax, records, loss, seconds)
    label(ax, "seconds of training", "test loss", log="xy")
    steady = all(len(set(each)) == 1 for each in seconds)
    return f"and against the time of training{', every step at the pace of the clock' if steady else ''}"


_ERRORS = (
    " and how far it is off, against the width. Errors are those of one gradient with the weights of the dynamics at "
    "{scale} their initial size, the same for all methods: against the exact gradient, and against the gradient of the "
    "loss as it was computed, which is direct’s"
)


def cost_figure(records: Records, *, task: str, scale: str) -> Drawing | None:
    """What one gradient costs and how wrong it is: evaluations, memory, errors against width."""
    everything = own([*of_study(records, CLOCK), *of_study(records, WIDTHS)])
    evaluations, error = number_of("per_gradient", "backward_evaluations"), number_of("gradient_error")
    kinds: list[tuple[str, str, Number]] = [
        ("evaluations backwards", "evaluations in the backward pass", evaluations),
        ("memory", "peak MiB of one gradient", lambda r: _mebibytes(r)),
        ("error", "error of the gradient", error),
        ("mismatch", "difference from direct’s gradient", _mismatch),
    ]
    plans = []
    for name, words, number in kinds:
        have = [r for r in _preferred(everything, name) if (found := number(r)) is not None and found > 0]
        if several(have):
            plans.append((words, number, have))
    if not plans:
        return None
    figure, axes = panels(len(plans))
    for ax, (words, number, have) in zip(axes, plans, strict=True):
        against(ax, have, "width", number)
        label(ax, "width", words, log="xy")
        name_settings(ax, have)
        name_ends(ax)
    off = any(number in (error, _mismatch) for _, number, _ in plans)
    return Drawing(
        figure,
        f"{task}: what one gradient costs{_ERRORS.format(scale=scale) if off else ', against the width'} (mean and "
        f"deviation, {seeds(of_study(everything, 'widths')) or 'one measurement'}). Lines that end together share a "
        "name.",
    )


def _preferred(records: Records, name: str) -> Records:
    """Memory from the clock if it has run, since it has the larger widths; errors from trained runs, where they are."""
    clocked = of_study(records, CLOCK)
    return clocked if name == "memory" and clocked else [r for r in records if r not in clocked] or clocked


def _mismatch(record: dict[str, Any]) -> float | None:
    return None if record["config"].get("study") == CLOCK else value(record, "gradient_mismatch")


def _mebibytes(record: dict[str, Any]) -> float | None:
    found = value(record, "peak_memory")
    return None if found is None else found / 2**20


def ablation(
    records: Records, *, study: str, field: str, name: str, metric: str, metric_name: str, task: str
) -> Drawing | None:
    """Time and metric against one setting, one line per method."""
    clocked, records = widest(timed_study(records, study)), widest(of_study(records, study))
    if not several(records, field):
        return None
    figure, axes = panels(2)
    numbers: list[tuple[Records, Number]] = [(clocked, step_seconds), (records, number_of("final", metric))]
    for ax, (chosen, number) in zip(axes, numbers, strict=True):
        for method in ordered(r["config"]["method"] for r in chosen):
            mine = where(chosen, method=method)
            settings = sorted({r["config"][field] for r in mine})
            spread = [mean_and_deviation([number(r) for r in mine if r["config"][field] == s]) for s in settings]
            words = [short(s) for s in settings]
            means, deviations = [m for m, _ in spread], [d for _, d in spread]
            errors = deviations if any(deviations) else None
            ax.errorbar(words, means, yerr=errors, label=method, capsize=2, **style(method))
    label(axes[0], name, "seconds per training step", log="y")
    label(axes[1], name, metric_name)
    methods = ordered(r["config"]["method"] for r in (*clocked, *records))
    if len(methods) > 1:
        legend(figure, axes)
    width, epochs = records[0]["config"]["width"], records[0]["config"].get("epochs")
    return Drawing(
        figure,
        f"{task} at width {width}, against {name}: the time of a step ({how_timed(clocked, field)}), and the "
        f"{metric_name} after {epochs} epochs (mean and deviation, {seeds(records, field)}).",
    )


def regularity(records: Records) -> Drawing | None:
    """Seconds per step for 10 and 50 times: regular, merged, per sample; a dot per method (of twelve cells at most)."""
    records = widest(timed_study(records, "regularity"))
    cells = spread_out(sorted({_cell(r) for r in records}, key=_cell_order), 12)
    if len(cells) < 2:
        return None
    methods = ordered(r["config"]["method"] for r in records)
    figure, (ax,) = panels(1, width=8.0, height=3.6)
    slot = 0.7 / len(methods)
    for i, method in enumerate(methods):
        places, means, deviations = [], [], []
        for j, cell in enumerate(cells):
            numbers = [step_seconds(r) for r in where(records, method=method) if _cell(r) == cell]
            mean, deviation = mean_and_deviation(numbers)
            places.append(j + (i - (len(methods) - 1) / 2) * slot)
            means.append(mean)
            deviations.append(deviation)
        look = style(method) | {"linestyle": "none", "color": STYLES.get(method, {}).get("color")}
        ax.errorbar(places, means, yerr=deviations if any(deviations) else None, label=method, capsize=2, **look)
    ax.set_xticks(range(len(cells)), [f"{times} times\n{spacing}" for times, spacing in cells])
    label(ax, "", "seconds per training step", log="y")
    legend(figure, [ax])
    width = records[0]["config"]["width"]
    return Drawing(
        figure,
        f"Sines at width {width}: the time of a step with regular times, with irregular ones merged into their union "
        "as in the paper, and with a row of times for each sample. Methods that solve backwards restart at every "
        f"time. Shown is {how_timed(records, 'times', 'spacing')}.",
    )


def _cell(record: dict[str, Any]) -> tuple[int, str]:
    return record["config"]["times"], record["config"]["spacing"]


def _cell_order(cell: tuple[int, str]) -> tuple[int, int]:
    return cell[0], ["regular", "merged", "per-sample"].index(cell[1])
