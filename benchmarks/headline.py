"""Figure and table of the README and of the site's home page: ``python -m benchmarks.headline [RESULTS]``.

Time and peak memory of one gradient on a few cells, of methods that a reader may choose between, from the lines of a
finished benchmark (benchmarks/results by default). The figure is drawn for light and for dark pages, and for wide and
narrow screens, into docs/assets; the table, and the sentence about diffrax below it, are printed.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from benchmarks.aims import over_diffrax
from benchmarks.report import seconds
from benchmarks.verdicts import Results
from quadjoint.experiments.verdicts import plain

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "docs" / "assets"
CELLS = {
    "sines-200": "time series, 50 observations,\n41,000 parameters",
    "ou-20": "SDE as a random ODE,\n1800 paths, 101 observations",
    "crossing-2000": "two samples,\n4 million parameters",
    "spheres-1000-3x": "batch of 200,\n1 million parameters",
}
# Ours filled, others hollow: name, colour on light and on dark paper, marker.
METHODS: dict[str, tuple[str, str, str, str]] = {
    "quadjoint:auto": ("auto", "#00796b", "#4db6ac", "o"),
    "quadjoint:gq": ("gq", "#0072b2", "#64b5f6", "D"),
    "quadjoint:discrete-lean": ("discrete, lean", "#7b5ea7", "#b39ddb", "s"),
    "torchdiffeq:direct": ("torchdiffeq", "#555555", "#bbbbbb", "o"),
    "torchdiffeq:adjoint": ("torchdiffeq adjoint", "#c2185b", "#f48fb1", "^"),
    "torchode:direct": ("torchode", "#b26a00", "#ffb74d", "P"),
    "paper:gq": ("the paper's code", "#a0522d", "#d7a98c", "v"),
}
ROWS = {
    "sines-20": "sine curves, 50 observations, width 20",
    "sines-1000": "the same, width 1000",
    "crossing-2000": "two trajectories, width 2000",
    "spheres-500-3x": "200 trajectories, width 500",
    "ou-20": "an SDE as a random ODE, 1800 paths",
}
COLUMNS = {
    "quadjoint:auto": "quadjoint `auto`",
    "torchdiffeq:direct": "torchdiffeq",
    "torchdiffeq:adjoint": "torchdiffeq, adjoint",
    "diffrax:checkpointed": "diffrax, checkpoints, under jit",
}
Record = dict[str, Any]


def table(records: list[Record]) -> list[str]:
    """Rows of times, with the peak memory where it was measured."""
    measured = {(r["cell"], r["method"]): r for r in records if r["kind"] == "gradient" and r["status"] == "ok"}
    lines = [f"| problem | {' | '.join(COLUMNS.values())} |", f"| --- |{' ---: |' * len(COLUMNS)}"]
    for cell, words in ROWS.items():
        numbers = [_numbers(measured.get((cell, method))) for method in COLUMNS]
        lines.append(f"| {words} (`{cell}`) | {' | '.join(numbers)} |")
    return lines


def _numbers(record: Record | None) -> str:
    if record is None:
        return ""
    peak = record.get("peak_bytes")
    return seconds(record["seconds_best"]) + (f", {plain(peak / 2**20, 2)} MiB" if peak else "")


def against_diffrax(records: list[Record]) -> str:
    """Where diffrax is ahead and where it is not, in words."""
    known = {cell: ratio for cell, ratio in over_diffrax(Results(records), 20).items() if ratio is not None}
    ahead = [ratio for ratio in known.values() if ratio > 1]
    behind = [f"on `{cell}` it takes {plain(1 / ratio, 2)} times as long" for cell, ratio in known.items() if ratio < 1]
    if not ahead:
        return f"The smallest networks, of width 5 to 20, compiled: {', '.join(behind)} with diffrax."
    few, many = plain(min(ahead), 2), plain(max(ahead), 2)
    return (
        "The smallest networks are where diffrax is ahead: at width 5 to 20, with the faster of its two gradients, it "
        f"is {few} to {many} times as fast as `compile=True` here{''.join(f'; {words}' for words in behind)}."
    )


def chosen(records: list[Record]) -> dict[str, list[Record]]:
    """The lines that are drawn, by cell: gradients with both a time and a memory."""
    found: dict[str, list[Record]] = {cell: [] for cell in CELLS}
    for record in records:
        done = record["kind"] == "gradient" and record["status"] == "ok" and record.get("peak_bytes")
        if done and record["cell"] in CELLS and record["method"] in METHODS:
            found[record["cell"]].append(record)
    return {cell: lines for cell, lines in found.items() if len(lines) > 1}


def draw(records: list[Record], dark: bool, columns: int) -> Any:
    """One panel for each cell: to the left is faster, further down is leaner."""
    groups = chosen(records)
    if not groups:
        raise SystemExit("no cell of these results has both times and memory; run benchmarks/run.py --full")
    ink, grid = ("#e0e0e0", "#555555") if dark else ("#222222", "#cccccc")
    style = {"text.color": ink, "axes.labelcolor": ink, "xtick.color": ink, "ytick.color": ink, "axes.edgecolor": grid}
    with plt.rc_context({**style, "svg.fonttype": "none", "svg.hashsalt": "quadjoint", "font.size": 9}):
        columns = min(columns, len(groups))
        rows = -(-len(groups) // columns)
        figure, axes = plt.subplots(
            rows, columns, figsize=(3.7 * columns, 2.5 * rows + 0.7), squeeze=False, layout="constrained"
        )
        for ax in axes.flat[len(groups) :]:
            ax.remove()
        for ax, (cell, lines) in zip(axes.flat, groups.items(), strict=False):
            _panel(ax, lines, dark)
            ax.set_title(CELLS[cell], fontsize=9)
            ax.grid(True, color=grid, alpha=0.4)
        for ax in axes[-1]:
            ax.set_xlabel("milliseconds for one gradient")
        for ax in axes[:, 0]:
            ax.set_ylabel("peak MiB")
        handles, labels = {}, list(METHODS.values())
        for ax in figure.axes:
            for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
                handles.setdefault(name, handle)
        shown = [name for name, *_ in labels if name in handles]
        figure.legend(
            [handles[n] for n in shown],
            shown,
            loc="outside lower center",
            ncols=2 * columns,
            frameon=False,
            labelcolor=ink,
            fontsize=8,
        )
        return figure


def _panel(ax: Any, lines: list[Record], dark: bool) -> None:
    for record in sorted(lines, key=lambda r: list(METHODS).index(r["method"])):
        name, light_ink, dark_ink, marker = METHODS[record["method"]]
        colour = dark_ink if dark else light_ink
        face = colour if record["method"].startswith("quadjoint:") else "none"
        point = (1000 * record["seconds_best"], record["peak_bytes"] / 2**20)
        ax.plot(*point, marker=marker, color=colour, markerfacecolor=face, linestyle="none", markersize=7, label=name)
    for axis, scale in ((ax.xaxis, ax.set_xscale), (ax.yaxis, ax.set_yscale)):
        scale("log")
        axis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5), numticks=8))
        axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda number, _: f"{number:g}"))
        axis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    ax.set_xlim(*_decade([1000 * r["seconds_best"] for r in lines]))
    ax.set_ylim(*_decade([r["peak_bytes"] / 2**20 for r in lines]))


def _decade(values: list[float]) -> tuple[float, float]:
    """Limits around the values that span a factor of ten at least, lest small differences look large."""
    low, high = min(values), max(values)
    room = max(1.3, (10 * low / high) ** 0.5)
    return low / room, high * room


def main(folder: Path) -> None:
    records = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    print(*table(records), against_diffrax(records), sep="\n")
    for (kind, columns), dark in itertools.product({"": 2, "narrow-": 1}.items(), (False, True)):
        path = ASSETS / f"headline-{kind}{'dark' if dark else 'light'}.svg"
        figure = draw(records, dark, columns)
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(figure)
        print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "benchmarks" / "results")
