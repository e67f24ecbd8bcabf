"""Tables from the JSON lines of a run: results.md. The figure is drawn by ``benchmarks.figure``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.aims import aims
from benchmarks.forward import ratios as forward_ratios
from benchmarks.methods import ours
from benchmarks.problems import cells as all_cells
from benchmarks.sweeps import TARGETS, bytes_per_step, time_to_reach
from quadjoint.experiments.timing import short_commit

Record = dict[str, Any]
TITLES = {
    "spheres": "Nested spheres (batch 200, state 5, t in [0, 1]; columns: width, scale of the weights)",
    "sines": "Sines (batch 15, state 2, 50 observations in [0, 2π], after 30 training steps; columns: width)",
    "crossing": "Crossing trajectories (two rows, state 4; columns: width)",
    "ou": "Ornstein-Uhlenbeck as a random ODE (1800 paths, 10 cosines, 101 observations in [0, 10]; columns: width)",
    "conv": "Convolutional state (the paper's MNIST model, 10 x 11 x 11, random images; columns: batch)",
    "irregular": "Irregular times (sines; columns: width x observations, and how the times are handled)",
    "tiny": "Tiny problems (for trying things out; times mean nothing)",
}
INTRODUCTION = """\
Seconds for one gradient, forward and backward pass together: the best of several runs, all methods in turns, one
thread, float32, dopri5, rtol = atol = {tolerance}. In brackets the relative error of the gradient, against float64 at
1e-9. Bold is the fastest time of a column, of methods whose error is at most ten times that of torchdiffeq's direct.
A ¹ marks the only run, the first, of methods that take longer than 3 s and that no aim is about. Absolute times move
from machine to machine: compare within a column."""


def seconds(value: float) -> str:
    """Three figures, in a unit that keeps them short.

    >>> seconds(0.01234), seconds(12.34), seconds(0.99986)
    ('12.3 ms', '12.3 s', '1 s')
    """
    return f"{value * 1e3:.3g} ms" if value < 0.9995 else f"{value:.3g} s"


def markdown(records: list[Record]) -> str:
    """The whole page."""
    gradients = [r for r in records if r["kind"] == "gradient"]
    parts = ["# Benchmarks", machine_text(records)]
    if gradients:
        tolerances = " or ".join(f"{tol:g}" for tol in dict.fromkeys(r["tolerance"] for r in gradients))
        parts.append(INTRODUCTION.format(tolerance=tolerances))
    for family, title in TITLES.items():
        mine = [r for r in gradients if r["family"] == family]
        tables = [gradient_table(chunk) for chunk in _column_groups(mine)]
        parts += [f"## {title}", *tables] if tables else []
    sections = (skipped_text, precision_text, scaling_text, forward_text, aims_text)
    parts += [section(records) for section in sections]
    return "\n\n".join(part for part in parts if part) + "\n"


def in_order(records: list[Record]) -> list[Record]:
    """As problems and methods are listed, also where some were measured again later."""
    places = {name: i for i, name in enumerate(all_cells())}
    mine = {method.name: i for i, method in enumerate(ours())}
    last = len(places) + len(mine)
    return sorted(records, key=lambda r: (places.get(r.get("cell", ""), last), mine.get(r.get("method", ""), last)))


def _column_groups(records: list[Record]) -> list[list[Record]]:
    """Spheres are split by scale, irregular times by problem, so that tables stay narrow."""
    groups: dict[str, list[Record]] = {}
    for r in records:
        key = {"spheres": str(r["scale"]), "irregular": r["cell"].split("-")[1]}.get(r["family"], "")
        groups.setdefault(key, []).append(r)
    return list(groups.values())


def machine_text(records: list[Record]) -> str:
    found = [r for r in records if r["kind"] == "machine"]
    if not found:
        return ""
    m = found[-1]
    commits = dict.fromkeys(r["commit"] for r in records if r.get("commit"))
    measured = f" Measured at commit {', '.join(map(short_commit, commits))}." if commits else ""
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items() if version)
    text = f"{m['processor']}, {m['cores']} cores of which one is used, {m['memory_gib']} GiB, {m['system']}, "
    return f"Machine: {text}Python {m['python']}; {versions}.{measured}"


def table(head: list[str], rows: Iterable[list[str]], numbers: bool = True) -> str:
    lines = [head, ["---"] + ["---:" if numbers else "---"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def gradient_table(records: list[Record]) -> str:
    cells = list(dict.fromkeys(r["cell"] for r in records))
    methods = list(dict.fromkeys(r["method"] for r in records))
    by = {(r["cell"], r["method"]): r for r in records}
    sound = [r for r in records if _sound(r, by)]
    fastest = {c: min((r["seconds_best"] for r in sound if r["cell"] == c), default=0) for c in cells}

    def entry(cell: str, method: str) -> str:
        r = by.get((cell, method))
        if r is None:
            return ""
        if r["status"] != "ok":
            return "–"
        time = seconds(r["seconds_best"])
        time = f"**{time}**" if r in sound and r["seconds_best"] == fastest[cell] else time
        time += "¹" * bool(r.get("cold"))
        return time if r["error"] is None else f"{time} ({r['error']:.0e})"

    def used(method: str) -> bool:
        return any((r := by.get((c, method))) is not None and r["status"] == "ok" for c in cells)

    short = [c.split("-", 1)[1] for c in cells]
    rows = [[method.replace(":", " "), *(entry(c, method) for c in cells)] for method in methods if used(method)]
    return table(["", *short], rows)


def _sound(record: Record, by: dict[tuple[str, str], Record]) -> bool:
    """Whether the gradient is that of the same problem, and about as accurate as torchdiffeq's direct."""
    if record["status"] != "ok" or record["error"] is None:
        return False
    direct = by.get((record["cell"], "torchdiffeq:direct"), {}).get("error")
    return direct is None or bool(record["error"] <= max(10 * direct, 1e-5))


def skipped_text(records: list[Record]) -> str:
    """Every method that is missing in a table, with the reason; one line for each reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for r in records:
        if r.get("status") in ("skipped", "failed") and r["kind"] == "gradient":
            reasons.setdefault((r["method"], r["note"]), []).append(r["cell"])
    busy = sorted({r["method"] for r in records if (r.get("cpu_per_second") or 0) > 1.2})
    late = [f"- {method}: used more than one thread" for method in busy]
    late += [f"- {r['cell']}: {r['note']}" for r in records if r["kind"] == "left-out"]
    if not reasons and not late:
        return ""
    lines = [
        f"- {method.replace(':', ' ')}: {note} ({', '.join(cells) if len(cells) <= 8 else f'{len(cells)} cells'})"
        for (method, note), cells in reasons.items()
    ]
    return "Left out (–):\n\n" + "\n".join(lines + late)


def precision_text(records: list[Record]) -> str:
    found = [r for r in records if r["kind"] == "precision"]
    if not found:
        return ""
    note = "Time to reach a gradient error: the fastest tolerance, of those tried, that does."
    parts = [f"## Work against precision\n\n{note}"]
    for cell in dict.fromkeys(r["cell"] for r in found):
        rows = []
        for method in dict.fromkeys(r["method"] for r in found if r["cell"] == cell):
            times = [time_to_reach(records, cell, method, target) for target in TARGETS]
            rows.append([method.replace(":", " "), *("not reached" if x is None else seconds(x) for x in times)])
        parts.append(table([cell, *(f"error {t:.0e}" for t in TARGETS)], rows))
    return "\n\n".join(parts)


def scaling_text(records: list[Record]) -> str:
    """Times over what grows, and the exponent of the growth."""
    found = [r for r in records if r["kind"] == "scaling"]
    if not found:
        return ""
    note = "Best time; in the last column p in time ~ x^p, fitted to the upper half of the sweep."
    parts = [f"## How the cost grows\n\n{note}"]
    for sweep in dict.fromkeys(r["sweep"] for r in found):
        mine = [r for r in found if r["sweep"] == sweep]
        xs = sorted({r["x"] for r in mine})
        rows = []
        for method in dict.fromkeys(r["method"] for r in mine):
            by = {r["x"]: r["seconds_best"] for r in mine if r["method"] == method and r["status"] == "ok"}
            rows.append([method.replace(":", " "), *(seconds(by[x]) if x in by else "–" for x in xs), exponent(by)])
        parts.append(table([sweep, *(f"{x}" for x in xs), "p"], rows))
    return "\n\n".join([*parts, steps_text(records), memory_text(records)])


def memory_text(records: list[Record]) -> str:
    """Peak memory over the number of steps."""
    found = [r for r in records if r["kind"] == "memory"]
    if not found:
        return ""
    rows = []
    for method in dict.fromkeys(r["method"] for r in found):
        peaks = [f"{r['peak_bytes'] / 2**20:.3g} MiB" for r in found if r["method"] == method]
        slope = bytes_per_step(records, method)
        rows.append([method.replace(":", " "), *peaks, "" if slope is None else f"{slope / 1024:.2f} KiB"])
    counts = dict.fromkeys(r["accepted"] for r in found)
    return table(["peak memory by steps (rk4, sines)", *(f"{n}" for n in counts), "a step"], rows)


def steps_text(records: list[Record]) -> str:
    """The growth with the steps of the forward solve, from the sweep over tolerances."""
    found = [r for r in records if r["kind"] == "precision" and r["status"] == "ok" and "quadjoint" in r["method"]]
    parts = []
    for cell in dict.fromkeys(r["cell"] for r in found):
        mine = [r for r in found if r["cell"] == cell]
        xs = sorted({r["steps"]["accepted"] for r in mine})
        rows = []
        for method in dict.fromkeys(r["method"] for r in mine):
            by = {r["steps"]["accepted"]: r["seconds_best"] for r in mine if r["method"] == method}
            rows.append([method.replace(":", " "), *(seconds(by[x]) if x in by else "–" for x in xs), exponent(by)])
        parts.append(table([f"steps ({cell})", *(f"{x}" for x in xs), "p"], rows))
    return "\n\n".join(parts)


def exponent(points: dict[int, float]) -> str:
    """Slope of log time over log x on the upper half of the points.

    >>> exponent({1: 1.0, 2: 1.0, 4: 2.0, 8: 4.0})
    '1.0'
    """
    import math

    chosen = sorted(points.items())[len(points) // 2 :]
    if len(chosen) < 2:
        return ""
    logs = [(math.log(x), math.log(y)) for x, y in chosen]
    mean_x, mean_y = (sum(v) / len(logs) for v in zip(*logs, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    return f"{sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread:.1f}"


def forward_text(records: list[Record]) -> str:
    ratios = forward_ratios(records)
    if not ratios:
        return ""
    by = {(r["cell"], r["method"]): r for r in records if r["kind"] == "forward"}
    rows = []
    for cell, ratio in ratios.items():
        both = [by[cell, f"{library}:forward"] for library in ("quadjoint", "torchdiffeq")]
        rows.append([cell, *(f"{seconds(r['seconds_best'])} ({r['error']:.0e})" for r in both), f"{ratio:.2f}"])
    head = "## Forward solves without gradients\n\nCells are rows x state - width; k50: observed fifty times."
    return head + "\n\n" + table(["", "quadjoint", "torchdiffeq", "ratio"], rows)


def aims_text(records: list[Record]) -> str:
    rows = [[row.regime, row.aim, row.measured, f"**{row.verdict}**"] for row in aims(records)]
    head = (
        "## Aims\n\nRatios of times are medians over the turns in which both methods were timed, and of best times "
        "where no turns are recorded; ✗ marks cells that miss the aim. Error no worse means: at most 1.5 times that of "
        "torchdiffeq's direct, or below 1e-5, where the rounding of float32 begins."
    )
    return head + "\n\n" + table(["regime", "aim", "measured", ""], rows, numbers=False)
