"""What figures are drawn with: the look of each method, axes, lines with deviations, curves, names at their ends."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from quadjoint.experiments.records import Record, Records, mean_and_deviation
from quadjoint.experiments.verdicts import short

T = TypeVar("T")


@dataclass(frozen=True)
class Drawing:
    """A figure and what it shows, in sentences."""

    figure: Figure
    caption: str


Drawer = Callable[[Records], Drawing | None]
Number = Callable[[Record], float | None]

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
    "paper:gq": {"color": "#56B4E9", "marker": "v", "linestyle": "--", "markerfacecolor": "none"},
    "paper:adjoint": {"color": "#CC79A7", "marker": "s", "linestyle": "--", "markerfacecolor": "none"},
    "paper:seminorm": {"color": "#E69F00", "marker": "^", "linestyle": "--", "markerfacecolor": "none"},
    "trapezoid": {"color": "#CC79A7", "marker": "s"},
    "simpson": {"color": "#E69F00", "marker": "^"},
    "boole": {"color": "#009E73", "marker": "P"},
    "gauss": {"color": "#0072B2", "marker": "D"},
    "monte-carlo": {"color": "#999999", "marker": "o"},
}


def style(method: str) -> dict[str, Any]:
    return {"markersize": 4, "linewidth": 1.3, **STYLES.get(method, {"marker": "."})}


def ordered(methods: Iterable[str]) -> list[str]:
    """Methods in the order of the legend, unknown ones last."""
    known = list(STYLES)
    return sorted(set(methods), key=lambda m: (known.index(m) if m in known else len(known), m))


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


def panels(count: int, *, width: float = 4.4, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """So many axes, two beside each other."""
    columns = min(count, 2)
    figure, axes = canvas(-(-count // columns), columns, width=width, height=height)
    for ax in axes[count:]:
        ax.remove()
    return figure, axes[:count]


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
        axis.set_major_formatter(FuncFormatter(lambda number, _: short(number)))
        axis.set_minor_formatter(NullFormatter())


def legend(figure: Figure, axes: list[Axes]) -> None:
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    if handles:
        order = ordered(handles)
        letters = max(map(len, order))
        columns = max(1, min(len(order), int(figure.get_figwidth() / (0.7 + 0.09 * letters))))
        figure.legend([handles[m] for m in order], order, loc="outside lower center", ncols=columns, frameon=False)


def against(ax: Axes, records: Records, field: str, number: Number) -> None:
    """Mean and deviation of a number against a setting, one line for each method; names at the ends of lines."""
    ends = []
    for method in ordered(r["config"]["method"] for r in records):
        mine = [r for r in records if r["config"]["method"] == method]
        points = []
        for setting in sorted({r["config"][field] for r in mine}):
            numbers = [number(r) for r in mine if r["config"][field] == setting]
            if any(n is not None for n in numbers):
                points.append((setting, *mean_and_deviation(numbers)))
        if points:
            x, y, deviation = zip(*points, strict=True)
            ax.errorbar(x, y, yerr=deviation if any(deviation) else None, label=method, capsize=2, **style(method))
            ends.append((method, x[-1], y[-1]))
    remember_ends(ax, ends)


def name_settings(ax: Axes, records: Records, field: str = "width") -> None:
    """Mark the settings that there are (some, if they are many), not powers of ten."""
    found = spread_out(sorted({r["config"][field] for r in records}), 12)
    ax.set_xticks(found, [short(s) for s in found], minor=False)
    ax.set_xticks([], minor=True)


def curves(ax: Axes, records: Records, name: str, seconds: Sequence[Sequence[float]] | None = None) -> None:
    """Mean curve over seeds against epochs, or against the time so far if ``seconds`` has that of each run's epochs."""
    ends = []
    runs = list(zip(records, seconds or [[]] * len(records), strict=True))
    for method in ordered(r["config"]["method"] for r in records):
        mine = [
            (r["result"].get("curves", {}).get(name), spent) for r, spent in runs if r["config"]["method"] == method
        ]
        mine = [(curve, spent) for curve, spent in mine if curve and (spent or seconds is None)]
        if not mine:
            continue
        length = min(len(part) for pair in mine for part in pair if part)
        y = [mean_and_deviation([curve[i] for curve, _ in mine])[0] for i in range(length)]
        x: Sequence[float] = range(1, length + 1)
        if seconds is not None:
            x = list(itertools.accumulate(mean_and_deviation([s[i] for _, s in mine])[0] for i in range(length)))
        look = style(method) | {"marker": STYLES.get(method, {}).get("marker", "."), "markevery": max(1, length // 8)}
        ax.plot(x, y, label=method, **look)
        ends.append((method, x[-1], y[-1]))
    remember_ends(ax, ends)


# Names at the ends of lines -------------------------------------------------------------------------------

_ENDS = "_line_ends"


def remember_ends(ax: Axes, ends: list[tuple[str, float, float]]) -> None:
    """Where the line of each method ends, for `name_ends`."""
    setattr(ax, _ENDS, ends)


def name_ends(ax: Axes, height: float = 150.0) -> None:
    """Write each method to the right of the axes, where its line ends; those that end together share one label.

    To be called when scales are set. ``height`` is about that of the axes, in points.
    """
    places = []
    for method, x, y in getattr(ax, _ENDS, []):
        across = float(ax.transAxes.inverted().transform(ax.transData.transform((x, y)))[1])
        if math.isfinite(across):
            places.append((min(max(across, 0.0), 1.0), method))
    groups: list[tuple[float, list[str]]] = []
    for across, method in sorted(places, key=lambda place: -place[0]):
        if groups and groups[-1][0] - across < 0.03:
            groups[-1][1].append(method)
        else:
            groups.append((across, [method]))
    line, free = 9.5 / height, math.inf
    for across, names in groups:
        words = [", ".join(names[k : k + 2]) for k in range(0, len(names), 2)]
        room = line * len(words)
        middle = min(across, free - room / 2)
        free = middle - room / 2
        colour = STYLES.get(names[0], {}).get("color") if len(names) == 1 else "#444444"
        ax.annotate(
            ",\n".join(words),
            (1.0, middle),
            xycoords="axes fraction",
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            color=colour,
            annotation_clip=False,
        )
