"""The figures, drawn from the JSON lines alone: means and standard deviations over seeds.

Each figure of the paper has its function here. A function takes the records of its experiment and returns a
figure, or None if there is nothing to draw.
"""

from __future__ import annotations

import io
import math
import re
import statistics
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from quadjoint.experiments import store
from quadjoint.experiments.faults import ODD_RECORD, Refusal, one_line
from quadjoint.experiments.files import write_whole

Record = dict[str, Any]
Records = list[Record]
Drawer = Callable[[Records], Figure | None]
T = TypeVar("T")

# Colours that stay apart for colour-blind readers (Okabe and Ito), and a marker for each as well.
STYLES: dict[str, dict[str, Any]] = {
    "direct": {"color": "#000000", "marker": "o", "linestyle": ":"},
    "adjoint": {"color": "#CC79A7", "marker": "s"},
    "seminorm": {"color": "#E69F00", "marker": "^"},
    "gq-paper": {"color": "#56B4E9", "marker": "v"},
    "gq": {"color": "#0072B2", "marker": "D"},
    "discrete": {"color": "#009E73", "marker": "P"},
    "auto": {"color": "#D55E00", "marker": "x", "linestyle": "--"},
    "aca": {"color": "#999999", "marker": "<"},
    "mali": {"color": "#8B6914", "marker": ">"},
    "torchsde-direct": {"color": "#555555", "marker": "o", "linestyle": "-."},
    "torchsde-adjoint": {"color": "#AA3377", "marker": "s", "linestyle": "-."},
}


def style(method: str) -> dict[str, Any]:
    return {"markersize": 4, "linewidth": 1.3, **STYLES.get(method, {"marker": "."})}


def ordered(methods: Iterable[str]) -> list[str]:
    """Methods in the order of the legend, unknown ones last."""
    known = list(STYLES)
    return sorted(set(methods), key=lambda m: (known.index(m) if m in known else len(known), m))


def mean_and_deviation(values: Sequence[float | None]) -> tuple[float, float]:
    """Over the seeds; the deviation of a single value is zero.

    >>> mean_and_deviation([1.0, 3.0])
    (2.0, 1.0)
    """
    numbers = [v for v in values if isinstance(v, int | float)]
    if not numbers:
        return math.nan, 0.0
    return statistics.fmean(numbers), statistics.pstdev(numbers)


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


def of_study(records: Records, *studies: str) -> Records:
    return [r for r in records if r["config"].get("study") in studies]


def value(record: Record, *path: str) -> float | None:
    """A number deep in the result, or None where it is missing."""
    node: Any = record["result"]
    for name in path:
        node = node.get(name) if isinstance(node, dict) else None
    return node if isinstance(node, int | float) and not isinstance(node, bool) else None


def spread_out(items: Sequence[T], most: int) -> list[T]:
    """At most so many of the items: the first, the last, and others evenly between. What fits a page is drawn.

    >>> spread_out(range(100), 4), spread_out("ab", 4)
    ([0, 33, 66, 99], ['a', 'b'])
    """
    if len(items) <= most:
        return list(items)
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def canvas(rows: int, columns: int, *, width: float = 4.4, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(rows * columns)]
    for ax in axes:
        ax.grid(True, alpha=0.3)
    return figure, axes


def label(ax: Axes, x: str, y: str, *, title: str = "", log: str = "") -> None:
    """Names and scales; a logarithmic scale only where something is positive."""
    ax.set(xlabel=x, ylabel=y, title=title)
    if "x" in log and math.isfinite(ax.dataLim.minposx):
        ax.set_xscale("log")
        _few_numbers(ax.xaxis, ax.dataLim.minposx, ax.dataLim.x1)
    if "y" in log and math.isfinite(ax.dataLim.minposy):
        ax.set_yscale("log")
        _few_numbers(ax.yaxis, ax.dataLim.minposy, ax.dataLim.y1)


def _few_numbers(axis: Axis, low: float, high: float) -> None:
    """Plain numbers on a logarithmic axis of less than two decades, where powers of ten are too few."""
    if high < 100 * low:
        axis.set_major_locator(MaxNLocator(5) if high < 2 * low else LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
        axis.set_minor_formatter(NullFormatter())


def legend(figure: Figure, axes: list[Axes]) -> None:
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        order = ordered(handles)
        columns = max(2, min(len(order), int(figure.get_figwidth() / 1.25)))
        figure.legend([handles[m] for m in order], order, loc="outside lower center", ncols=columns, frameon=False)


def against_width(ax: Axes, records: Records, *path: str) -> None:
    """Mean and deviation of a number of the result against width, one line per method."""
    for method in ordered(r["config"]["method"] for r in records):
        mine = [r for r in records if r["config"]["method"] == method]
        points = []
        for width in sorted({r["config"]["width"] for r in mine}):
            numbers = [value(r, *path) for r in mine if r["config"]["width"] == width]
            if any(n is not None for n in numbers):
                points.append((width, *mean_and_deviation(numbers)))
        if points:
            x, y, deviation = zip(*points, strict=True)
            ax.errorbar(x, y, yerr=deviation, label=method, capsize=2, **style(method))


def name_widths(ax: Axes, records: Records) -> None:
    """Mark the widths that there are (some, if they are many), not powers of ten."""
    widths = spread_out(sorted({r["config"]["width"] for r in records}), 12)
    ax.set_xticks(widths, [str(w) for w in widths], minor=False)
    ax.set_xticks([], minor=True)


def curves(ax: Axes, records: Records, name: str, *, clock: bool) -> None:
    """Mean curve over seeds against epochs or against the seconds of training so far."""
    for method in ordered(r["config"]["method"] for r in records):
        mine = [r["result"].get("curves", {}) for r in records if r["config"]["method"] == method]
        mine = [c for c in mine if c.get(name) and c.get("seconds")]
        if not mine:
            continue
        length = min(len(c[name]) for c in mine)
        y = [mean_and_deviation([c[name][i] for c in mine])[0] for i in range(length)]
        seconds = [mean_and_deviation([c["seconds"][i] for c in mine])[0] for i in range(length)]
        x = _running_sum(seconds) if clock else list(range(1, length + 1))
        look = style(method) | {"marker": STYLES.get(method, {}).get("marker", "."), "markevery": max(1, length // 8)}
        ax.plot(x, y, label=method, **look)


def _running_sum(values: Iterable[float]) -> list[float]:
    total, sums = 0.0, []
    for number in values:
        total += number
        sums.append(total)
    return sums


def training_figure(records: Records, metric: str, metric_name: str, loss: str, *, log_metric: bool) -> Figure | None:
    """The paper's four panels: time and metric against width, loss against epoch and clock at the largest width."""
    timed = of_study(records, "widths", "time")
    trained = of_study(records, "widths")
    if not timed:
        return None
    figure, axes = canvas(2, 2)
    against_width(axes[0], timed, "seconds_per_gradient")
    label(axes[0], "width", "seconds per training step", title="Time", log="xy")
    name_widths(axes[0], timed)
    against_width(axes[1], trained, "final", metric)
    label(axes[1], "width", metric_name, title="After training", log="xy" if log_metric else "x")
    if trained:
        name_widths(axes[1], trained)
        width = max(r["config"]["width"] for r in trained)
        largest = [r for r in trained if r["config"]["width"] == width]
        curves(axes[2], largest, loss, clock=False)
        curves(axes[3], largest, loss, clock=True)
        label(axes[2], "epoch", "test loss", title=f"Width {width}", log="y")
        axes[2].xaxis.set_major_locator(MaxNLocator(integer=True))
        label(axes[3], "seconds of training", "test loss", title=f"Width {width}", log="xy")
    legend(figure, axes)
    return figure


def cost_figure(records: Records) -> Figure | None:
    """What one gradient costs and how wrong it is: evaluations, memory, error against width."""
    timed = of_study(records, "widths", "time")
    if not timed:
        return None
    figure, axes = canvas(2, 2)
    against_width(axes[0], timed, "per_gradient", "backward_evaluations")
    label(axes[0], "width", "evaluations in the backward pass", log="xy")
    against_width(axes[1], timed, "peak_memory")
    label(axes[1], "width", "peak bytes of one gradient", log="xy")
    against_width(axes[2], timed, "gradient_error")
    label(axes[2], "width", "relative error", title="Against the exact gradient", log="xy")
    against_width(axes[3], timed, "gradient_mismatch")
    label(axes[3], "width", "relative difference", title="Against the gradient of the computed loss", log="xy")
    for ax in axes:
        name_widths(ax, timed)
    legend(figure, axes)
    return figure


def draw_all(out: Path, say: Callable[[str], object]) -> dict[Path, bytes]:
    """Draw every figure that the results in ``out`` allow into ``out/figures``; returns paths and pictures."""
    results = store.read(out)
    for problem in results.problems:
        say(problem)
    if not results.records:
        raise Refusal(f"there are no results in {out}; run quadjoint reproduce first")
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {folder / f"{name}.svg": picture for name, picture in pictures(results, say).items()}
    for path, picture in drawn.items():
        write_whole(path, picture)
    return drawn


def pictures(results: store.Results, say: Callable[[str], object]) -> dict[str, bytes]:
    """Every figure that can be drawn, as SVG by its name; what cannot is said and left out."""
    from quadjoint.experiments.figures import FIGURES

    drawn = {}
    for experiment, figures in FIGURES.items():
        records = results.of(experiment)
        for name, draw in figures.items():
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                try:
                    figure = draw(records) if records else None
                    if figure is not None:
                        drawn[name] = as_svg(figure)
                except ODD_RECORD as error:
                    say(
                        f"figure {name} left out: a record of {experiment} is not as expected ({one_line(repr(error))})"
                    )
            for message in sorted({one_line(warning.message) for warning in heard}):
                say(f"figure {name}: {message}")
    return drawn


def as_svg(figure: Figure) -> bytes:
    """The figure as SVG, byte for byte the same for the same results, without the characters that XML cannot hold."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "quadjoint"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "", buffer.getvalue()).encode()
