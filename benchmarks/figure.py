"""One figure: time above, gradient error below, a panel for each family of cells, a line for each method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Record = dict[str, Any]
# Ours in full lines and marks, peers in dashed and hollow ones. Of the modes of `discrete` only the one that it chooses
# by itself is drawn; the table has them all.
STYLES: dict[str, tuple[str, str, str]] = {
    "quadjoint:auto": ("#000000", "o", "-"),
    "quadjoint:direct": ("#0072b2", "s", "-"),
    "quadjoint:discrete": ("#d55e00", "D", "-"),
    "quadjoint:gq": ("#009e73", "^", "-"),
    "quadjoint:gq-paper": ("#cc79a7", "v", "-"),
    "quadjoint:adjoint": ("#999999", "<", "-"),
    "quadjoint:seminorm": ("#bbbbbb", ">", "-"),
    "quadjoint:auto-compiled": ("#e6a100", "*", "-"),
    "paper:gq": ("#cc79a7", "v", "--"),
    "paper:adjoint": ("#7b3294", "<", "--"),
    "paper:seminorm": ("#c2a5cf", ">", "--"),
    "torchdiffeq:direct": ("#0072b2", "s", "--"),
    "torchdiffeq:adjoint": ("#999999", "<", "--"),
    "torchdiffeq:seminorm": ("#bbbbbb", ">", "--"),
    "torchode:direct": ("#56b4e9", "P", "--"),
    "diffrax:checkpointed": ("#8c510a", "X", "--"),
    "diffrax:backsolve": ("#bf812d", "x", "--"),
    "torchsde:direct": ("#5e3c99", "h", "--"),
    "torchsde:adjoint": ("#b2abd2", "h", "--"),
}
COLUMNS = 4
CROWDED = 6  # cells in a panel, beyond which names are turned and points not joined


def panels(records: list[Record]) -> dict[str, list[Record]]:
    """Records of gradients by panel; the spheres have one for each scale of the weights."""
    out: dict[str, list[Record]] = {}
    for r in records:
        if r["kind"] == "gradient" and r["status"] == "ok" and r["method"] in STYLES:
            title = f"nested spheres, weights {r['scale']:g}x" if r["family"] == "spheres" else r["family"]
            out.setdefault({"ou": "Ornstein-Uhlenbeck"}.get(title, title), []).append(r)
    return out


def draw(records: list[Record], path: Path) -> Path | None:
    """Write the figure; None if there is nothing to draw."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    groups = panels(records)
    if not groups:
        return None
    columns = min(COLUMNS, len(groups))
    bands = -(-len(groups) // columns)
    figure, axes = plt.subplots(2 * bands, columns, figsize=(4.6 * columns, 5.6 * bands + 1.2), squeeze=False)
    for axis in axes.flat:
        axis.set_visible(False)
    for i, (title, mine) in enumerate(groups.items()):
        band, column = divmod(i, columns)
        times, errors = axes[2 * band][column], axes[2 * band + 1][column]
        _panel(times, mine, "seconds_best", "seconds for one gradient" if column == 0 else "")
        _panel(errors, mine, "error", "relative gradient error" if column == 0 else "")
        times.set_title(title)
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    ordered = [m.replace(":", " ") for m in STYLES if m.replace(":", " ") in handles]
    figure.legend(handles=[handles[m] for m in ordered], loc="lower center", ncols=6, frameon=False)
    figure.tight_layout(rect=(0, 1.2 / (5.6 * bands + 1.2) * 0.8, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _panel(axis: Any, records: list[Record], field: str, label: str) -> None:
    axis.set_visible(True)
    cells = list(dict.fromkeys(r["cell"] for r in records))
    for method, (color, marker, line) in STYLES.items():
        by = {r["cell"]: r[field] for r in records if r["method"] == method and r[field] is not None}
        where = [i for i, cell in enumerate(cells) if cell in by]
        if where:
            values = [by[cells[i]] for i in where]
            joined = line if len(cells) <= CROWDED else "none"
            style = {"color": color, "marker": marker, "linestyle": joined, "markersize": 5, "linewidth": 1.2}
            style |= {"markerfacecolor": "none"} if line == "--" else {}
            axis.plot(where, values, label=method.replace(":", " "), **style)
    axis.set_yscale("log")
    crowded = len(cells) > CROWDED
    names = [_tick(cell).replace("\n", " " if crowded else "\n") for cell in cells]
    if crowded and field != "error":  # the panel below has the same names
        names = [""] * len(cells)
    axis.set_xticks(range(len(cells)), names, fontsize=7 if crowded else 9, rotation=90 if crowded else 0)
    axis.set_xlim(-0.4, len(cells) - 0.6)
    axis.set_ylabel(label)
    axis.grid(True, which="major", alpha=0.3)


def _tick(cell: str) -> str:
    """The part of a name that differs within a panel, on lines of its own where it has several words."""
    parts = cell.split("-")
    if parts[0] == "spheres":
        return parts[1]
    return "\n".join([parts[1], "-".join(parts[2:])]).strip()
