"""What the user sees during a sweep: a live table in a terminal, one line per finished run elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from quadjoint.experiments.estimate import Estimate, time_left
from quadjoint.experiments.execute import Job
from quadjoint.experiments.scheduler import Event
from quadjoint.experiments.training import Progress
from quadjoint.experiments.verdicts import short


def duration(seconds: float | None) -> str:
    """A span of time as people say it.

    >>> duration(0.012), duration(75), duration(7300), duration(None)
    ('12 ms', '1:15 min', '2:01 h', '')
    """
    if seconds is None or not math.isfinite(seconds):
        return ""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
    return f"{int(seconds) // 3600}:{int(seconds) % 3600 // 60:02d} h"


# Settings that tell the cells of an experiment apart; said where they are not the default.
_CELL = ("task", "dataset", "batch", "times", "spacing", "cosines", "c", "rtol")


_ALWAYS = ("task", "rtol")  # said in any case: no value is usual


def describe(job: Job) -> str:
    """A run in words: experiment, method, width, seed, and what else is special about it."""
    words = f"{job.experiment} {job.config.method} width {job.config.width} seed {job.config.seed}"
    return " ".join([words, *special(job)])


def special(job: Job) -> list[str]:
    """What tells a run from others of its experiment, method, width and seed: settings, and the study it belongs to."""
    default = type(job.config)()
    settings = [(name, getattr(job.config, name, None)) for name in _CELL]
    words = [
        f"{name} {short(setting)}" if isinstance(setting, float) else f"{name} {setting}"
        for name, setting in settings
        if setting is not None and (name in _ALWAYS or setting != getattr(default, name))
    ]
    study = getattr(job.config, "study", "widths")
    return words if study == "widths" else [*words, f"({study})"]


@dataclass
class _Running:
    """A run under way: when it began, and when it told of its first and of its latest epoch."""

    started: float
    progress: Progress | None = None
    first: tuple[float, int] | None = None
    latest: float = 0.0

    def hear(self, progress: Progress, now: float) -> None:
        self.first = self.first or (now, progress.done)
        self.progress, self.latest = progress, now

    def left(self, now: float, expected: float) -> float:
        """Seconds left by the pace of the epochs since the first, for what is done before it is done once; until there
        are two, by what is expected of the run."""
        if self.progress is None or self.first is None or not self.progress.done:
            return max(expected - (now - self.started), 0.0)
        begin, done = self.first
        more = self.progress.done - done
        pace = (self.latest - begin) / more if more else (self.latest - self.started) / self.progress.done
        return max(pace * (self.progress.total - self.progress.done) - (now - self.latest), 0.0)


@dataclass
class Board:
    """Collects events and shows them. Use as a context; hand it to `sweep` as its watcher."""

    jobs: list[Job]  # still to do
    done_before: int = 0  # finished in earlier sessions
    workers: int = 1
    console: Console = field(default_factory=Console)
    estimate: Estimate = field(default_factory=Estimate)
    clock: Callable[[], float] = time.monotonic
    recent: int = 8
    running: dict[str, tuple[Job, _Running]] = field(default_factory=dict)
    finished: list[tuple[Job, dict[str, Any]]] = field(default_factory=list)
    failed: list[tuple[Job, str]] = field(default_factory=list)
    _live: Live | None = None
    _begin: float = 0.0

    def __post_init__(self) -> None:
        self._begin = self.clock()

    def __enter__(self) -> Board:
        if self.console.is_terminal:
            self._live = Live(self.render(), console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        job = event.job
        if job is not None:
            if event.kind == "started":
                self.running[job.key] = job, _Running(self.clock())
            elif event.kind == "progress" and event.progress is not None and job.key in self.running:
                self.running[job.key][1].hear(event.progress, self.clock())
            elif event.kind in ("finished", "failed"):
                self.running.pop(job.key, None)
                self._close(job, event)
        if self._live is not None:
            self._live.update(self.render(), refresh=True)

    def _close(self, job: Job, event: Event) -> None:
        if event.kind == "failed":
            self.failed.append((job, event.message))
        else:
            self.finished.append((job, event.record))
            self.estimate.learn(event.record)
        if self._live is None:
            self.console.print(
                f"[{self.done}/{self.total}] {escape(self._line(job, event))}", highlight=False, soft_wrap=True
            )

    def _line(self, job: Job, event: Event) -> str:
        if event.kind == "failed":
            return f"{describe(job)}: FAILED, {event.message.strip().splitlines()[-1]}"
        result = event.record["result"]
        if event.record["status"] == "failed":
            return f"{describe(job)}: gave up, {result.get('reason', '')}"
        words = [f"{duration(event.record['seconds'])}"]
        if result.get("seconds_per_epoch"):
            words.append(f"{duration(result['seconds_per_epoch'])} an epoch")
        words += [f"{name.replace('_', ' ')} {value:.4g}" for name, value in shown_metrics(result)]
        return f"{describe(job)}: {', '.join(words)}"

    @property
    def total(self) -> int:
        return self.done_before + len(self.jobs)

    @property
    def done(self) -> int:
        return self.done_before + len(self.finished) + len(self.failed)

    def time_left(self) -> float:
        """Seconds until the last run ends, by what is expected of each, with the workers at hand."""
        now = self.clock()
        closed = {job.key for job, _ in self.finished} | {job.key for job, _ in self.failed} | self.running.keys()
        waiting = [job for job in self.jobs if job.key not in closed]
        running = [run.left(now, self.estimate.seconds(job)) for job, run in self.running.values()]
        return time_left(running, waiting, self.estimate, self.workers)

    def render(self) -> RenderableType:
        table = Table()
        for name in ("run", "method", "width", "seed", "setting"):
            table.add_column(name)
        for name in ("epoch", "loss", "per epoch", "left"):
            table.add_column(name, justify="right")
        for job, record in self.finished[-self.recent :]:
            table.add_row(*_finished_row(job, record), style="dim")
        for job, run in self.running.values():
            left = run.left(self.clock(), self.estimate.seconds(job))
            table.add_row(*_running_row(job, run, left), style="bold")
        waiting = self.total - self.done - len(self.running)
        words = f"{self.done} of {self.total} done, {len(self.running)} running, {waiting} waiting"
        if self.failed:
            words += f", {len(self.failed)} failed"
        words += f"; {duration(self.clock() - self._begin)}"
        if waiting + len(self.running):
            words += f", about {duration(self.time_left())} left"
        return Group(table, Text(words))


def shown_metrics(result: dict[str, Any]) -> list[tuple[str, float]]:
    """The final metrics that are numbers, without the clock."""
    final = result.get("final", {})
    return [(name, value) for name, value in final.items() if name != "seconds" and isinstance(value, int | float)]


def _names(job: Job) -> tuple[str, ...]:
    config = job.config
    return (
        escape(job.experiment),
        escape(config.method),
        str(config.width),
        str(config.seed),
        escape(" ".join(special(job))),
    )


def _finished_row(job: Job, record: dict[str, Any]) -> tuple[str, ...]:
    result = record["result"]
    if record["status"] == "failed":
        return (*_names(job), "gave up", "", "", "")
    loss = result.get("final", {}).get("train_loss")
    epochs = str(result["epochs"]) if "epochs" in result else "done"
    loss_word = "" if loss is None else f"{loss:.4g}"
    return (*_names(job), epochs, loss_word, duration(result.get("seconds_per_epoch")), "done")


def _running_row(job: Job, run: _Running, left: float) -> tuple[str, ...]:
    if run.progress is None:
        return (*_names(job), "", "", "", duration(left))
    p = run.progress
    return (*_names(job), f"{p.done}/{p.total}", f"{p.loss:.4g}", duration(p.seconds), duration(left))
