"""The demo: two of the paper's tasks at a size where the difference shows, with seven gradients, in two minutes."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from quadjoint.experiments import nested_spheres, sines, store
from quadjoint.experiments.config import METHODS
from quadjoint.experiments.display import Board, describe, duration
from quadjoint.experiments.execute import Job
from quadjoint.experiments.plots import STYLES, canvas, curves, label, legend, ordered
from quadjoint.experiments.records import Records, epoch_seconds, step_seconds, value
from quadjoint.experiments.scheduler import local, sweep

SPHERES = nested_spheres.Config(width=40, epochs=25, lr=1e-2)
SINES = sines.Config(width=200, epochs=20, lr=1e-3)
TITLES = {"nested-spheres": "Nested spheres", "sines": "Sine curves, 50 observations"}
LOSSES = {"nested-spheres": "test_loss", "sines": "test_mse"}


def demo_jobs() -> list[Job]:
    """Every method on both tasks, the slow ones first so that all processes end together."""
    slow_first = sorted(METHODS, key=lambda m: ("adjoint", "seminorm", "gq-paper", "gq", m).index(m))
    jobs = [Job("sines", replace(SINES, method=m)) for m in slow_first]
    return jobs + [Job("nested-spheres", replace(SPHERES, method=m)) for m in slow_first]


def run_demo(out: Path, processes: int, console: Console, jobs: list[Job] | None = None) -> Path:
    """Train, print the tables, save the picture; returns its path."""
    jobs = demo_jobs() if jobs is None else jobs
    console.print(
        f"Training two neural ODEs by {len(METHODS)} gradient methods, {processes} at a time: "
        f"nested spheres (width {SPHERES.width}) and sine curves (width {SINES.width}).",
        highlight=False,
    )
    with tempfile.TemporaryDirectory(prefix="quadjoint-demo-") as scratch:
        with Board(jobs, workers=processes, console=console, recent=len(jobs)) as board:
            failures = sweep(jobs, local(processes, Path(scratch)), Path(scratch), board)
        results = store.read(Path(scratch))
    for failure in failures:
        if failure.job is not None:
            console.print(f"FAILED {describe(failure.job)}: {failure.message}", markup=False, highlight=False)
    for name, title in TITLES.items():
        if results.of(name):
            console.print(demo_table(results.of(name), title))
    path = out / "demo.png"
    out.mkdir(parents=True, exist_ok=True)
    demo_figure(results).savefig(path, dpi=150)
    console.print(
        "step: time of a training step; faster: than the adjoint; evals: in the backward pass; MiB: peak of one "
        "gradient; loss: on the test set. "
        "error: of one gradient against the exact one; mismatch: against the gradient of the loss as it was computed "
        "(weights at three times, sines twice, their initial size, the same for all methods).",
        highlight=False,
    )
    console.print(f"Picture: {path.resolve()}", highlight=False, markup=False, soft_wrap=True)
    return path


def demo_table(records: Records, title: str) -> Table:
    """One row per method."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("method", no_wrap=True)
    for name in ("step", "faster", "evals", "MiB", "error", "mismatch", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    found = {r["config"]["method"]: r for r in records}
    adjoint = step_seconds(found["adjoint"]) if "adjoint" in found else None
    for method in ordered(found):
        record = found[method]
        seconds = step_seconds(record)
        table.add_row(
            method,
            duration(seconds),
            f"{adjoint / seconds:.1f}x" if seconds and adjoint else "",
            _number(value(record, "per_gradient", "backward_evaluations"), ".0f"),
            f"{(value(record, 'peak_memory') or 0) / 2**20:.2f}",
            _number(value(record, "gradient_error"), ".0e"),
            _number(value(record, "gradient_mismatch"), ".0e"),
            _number(value(record, "final", LOSSES[record["experiment"]]), ".2g"),
        )
    return table


def _number(number: float | None, form: str) -> str:
    return "" if number is None else format(number, form)


def demo_figure(results: store.Results) -> Figure:
    """Loss against the clock, and time per step beside the mismatch of the gradient, for both tasks."""
    figure, axes = canvas(2, 2, width=5.0, height=3.4)
    for column, (name, title) in enumerate(TITLES.items()):
        records = results.of(name)
        curves(axes[column], records, LOSSES[name], epoch_seconds(records, records))
        label(axes[column], "seconds of training", "test loss", title=title, log="xy")
        _bars(axes[2 + column], records)
    legend(figure, axes[:2])
    return figure


def _bars(ax: Any, records: Records) -> None:
    """Time per step as bars, the mismatch of each gradient written at its end."""
    found = {r["config"]["method"]: r for r in records}
    methods = ordered(found)[::-1]
    seconds = [step_seconds(found[m]) or 0.0 for m in methods]
    bars = ax.barh(methods, seconds, color=[STYLES[m]["color"] for m in methods])
    off = [value(found[m], "gradient_mismatch") for m in methods]
    ax.bar_label(bars, [f" mismatch {x:.0e}" if x is not None else "" for x in off], fontsize=8)
    ax.set(xscale="log", xlabel="seconds per training step")
    ax.margins(x=0.35)
