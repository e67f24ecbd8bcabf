"""From a request on the command line to finished runs, figures and report."""

from __future__ import annotations

import signal
import types
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quadjoint.experiments import authors, data, store
from quadjoint.experiments.cluster import on_ray, require_ray
from quadjoint.experiments.config import Choice
from quadjoint.experiments.display import Board, describe, duration
from quadjoint.experiments.estimate import Estimate, time_left
from quadjoint.experiments.execute import Job
from quadjoint.experiments.faults import Halt, Refusal
from quadjoint.experiments.names import PRESETS
from quadjoint.experiments.registry import NAMES, experiment
from quadjoint.experiments.scheduler import Backend, Event, alone_last, local, sweep, together
from quadjoint.experiments.workers import Team, join, leave, under_torchrun


@dataclass(frozen=True)
class Request:
    """What ``quadjoint reproduce`` was asked for."""

    name: str
    preset: str
    out: Path
    methods: tuple[str, ...] | None = None
    widths: tuple[int, ...] | None = None
    seeds: tuple[int, ...] | None = None
    device: str = "cpu"
    data: Path | None = None
    authors: Path | None = None
    jobs: int = 1
    ray: str | None = None
    list_only: bool = False
    dry_run: bool = False

    @property
    def only_plan(self) -> bool:
        """Whether nothing is to be run."""
        return self.list_only or self.dry_run


def reproduce(request: Request, console: Console) -> int:
    """Do all runs of the request that are not done yet; returns the exit code."""
    _check(request)
    jobs = _with_data(planned(request), request, console)
    results = store.read(request.out)
    for problem in results.problems:
        console.print(escape(problem), highlight=False)
    finished = results.keys()
    todo = [job for job in jobs if job.key not in finished]
    estimate = Estimate.of(results.records)
    if request.list_only:
        for job in jobs:
            console.print(f"{'waiting' if job in todo else 'done   '} {escape(describe(job))}", highlight=False)
    if request.dry_run:
        console.print(f"{request.name}, preset {request.preset}: {PRESETS[request.preset]}.", highlight=False)
        console.print(plan(jobs, todo, estimate))
        console.print(f"{_outlook(todo, estimate, request)} Nothing was run.", highlight=False)
    if request.only_plan:
        return 0
    team = join(request.device)
    if not team.leads:
        console = Console(quiet=True)
    before = len(jobs) - len(todo)
    console.print(
        f"{len(jobs)} runs, {before} of them done before; results go to {request.out}. "
        f"{_outlook(todo, estimate, request)}",
        highlight=False,
    )
    try:
        return _sweep(request, jobs, todo, team, console, estimate)
    finally:
        leave(team)


def plan(jobs: list[Job], todo: list[Job], estimate: Estimate) -> Table:
    """How many runs of each experiment and study there are, are done and are to do, and how long they take."""
    table = Table("experiment", "study", box=SIMPLE_HEAD)
    for name in ("runs", "done", "to do", "computation"):
        table.add_column(name, justify="right")
    groups: dict[tuple[str, str], list[Job]] = {}
    for name in NAMES:
        for job in jobs:
            if job.experiment == name:
                groups.setdefault((name, getattr(job.config, "study", "")), []).append(job)
    for (name, study), every in groups.items():
        _add_row(table, (name, study), every, todo, estimate)
    table.add_section()
    _add_row(table, ("all", ""), jobs, todo, estimate)
    return table


def _add_row(table: Table, names: tuple[str, str], jobs: list[Job], todo: list[Job], estimate: Estimate) -> None:
    waiting = {job.key for job in todo}
    left = [job for job in jobs if job.key in waiting]
    seconds = duration(sum(estimate.seconds(job) for job in left)) if left else ""
    table.add_row(*names, str(len(jobs)), str(len(jobs) - len(left)), str(len(left)), seconds)


def _outlook(todo: list[Job], estimate: Estimate, request: Request) -> str:
    """How many runs are to do, how long they will take from now to the end, and by what this is judged."""
    if not todo:
        return "All runs are done."
    work = sum(estimate.seconds(job) for job in todo)
    seconds = time_left([], todo, estimate, request.jobs)
    done = estimate.taken[()][0] if estimate.taken else 0
    here = "by 1 run done here" if done == 1 else f"by {done} runs done here"
    judged = here if done else "by runs recorded on another machine"
    processes = "one process" if request.jobs == 1 else f"{request.jobs} processes"
    runs = "1 run" if len(todo) == 1 else f"{len(todo)} runs"
    span = f"about {duration(seconds)} with {processes}, judged {judged}"
    clock = " The clock runs last, with one process, as it measures time." if _sleeps(todo, request) else ""
    return f"{runs} to do, {duration(work)} of computation: {span}.{clock}"


def _sleeps(todo: list[Job], request: Request) -> bool:
    """Whether there are processes that have to wait while others run alone."""
    return request.jobs > 1 and any(job.alone for job in todo)


def planned(request: Request) -> list[Job]:
    """The runs of the request, those done before among them."""
    try:
        chosen = (request.methods, request.widths, request.seeds)
        choice = Choice(request.preset, *chosen, device=request.device, authors=request.authors is not None)
        names = NAMES if request.name == "all" else (request.name,)
        modules = [experiment(name) for name in names]
    except ValueError as error:
        raise Refusal(str(error)) from None
    known = {method for module in modules for method in module.METHODS}
    if unknown := sorted(set(request.methods or ()) - known):
        raise Refusal(f"no method {', '.join(unknown)} here; choose from {', '.join(sorted(known))}")
    return slow_first([Job(module.NAME, config) for module in modules for config in module.grid(choice)])


def slow_first(jobs: list[Job]) -> list[Job]:
    """The runs in the order in which to start them: no process is left with a long run when the others have none.

    What must be alone comes last.
    """
    return alone_last(sorted(jobs, key=Estimate().seconds, reverse=True))


def _with_data(jobs: list[Job], request: Request, console: Console) -> list[Job]:
    """Without the runs whose data are not there or damaged, which is said; refused if that leaves none."""
    home = data.data_home(request.data)
    complaints: dict[str, str | None] = {}
    kept = []
    for job in jobs:
        name = getattr(job.config, "dataset", None)
        if name is not None and name not in complaints:
            # Every process would find the damage, each in a traceback of its own.
            complaints[name] = data.missing(name, home) or (None if request.only_plan else data.damaged(name, home))
        if name is None or complaints[name] is None:
            kept.append(job)
    absent = {name: complaint for name, complaint in complaints.items() if complaint is not None}
    if jobs and not kept:
        raise Refusal("; ".join(absent.values()))
    for name, complaint in absent.items():
        console.print(f"runs on {name} left out: {complaint}", highlight=False, markup=False, soft_wrap=True)
    return kept


def _check(request: Request) -> None:
    try:
        torch.zeros(1, device=request.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise Refusal(f"the device {request.device!r} cannot be used here: {reason}") from None
    if request.authors is not None:
        authors.require(request.authors)
    if request.ray and under_torchrun():
        raise Refusal("--ray and torchrun exclude each other")
    if request.ray:
        require_ray()


def _sweep(request: Request, jobs: list[Job], todo: list[Job], team: Team, console: Console, estimate: Estimate) -> int:
    backend, workers = _backend(request, team)
    board = Board(todo, done_before=len(jobs) - len(todo), workers=workers, console=console, estimate=estimate)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        with board:
            failures = sweep(todo, backend, request.out, board, team)
    except store.Busy as busy:
        raise Refusal(str(busy)) from None
    except Halt as halt:
        raise Refusal(f"{halt}; stopped, {_kept(board, request)}") from None
    except BrokenPipeError:
        raise Refusal(f"nobody reads the output any more; stopped, {_kept(board, request)}") from None
    except KeyboardInterrupt:
        console.print(f"Stopped, {_kept(board, request)}.", highlight=False)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    _say_failures(failures, console)
    console.print(f"{board.done - len(failures)} of {board.total} runs done.", highlight=False)
    if team.leads:
        _publish(request.out, console)
    return 1 if failures else 0


def _kept(board: Board, request: Request) -> str:
    done = f"{board.done - len(board.failed)} of {board.total} runs are done and kept in {request.out}"
    return f"{done}; the same command goes on from here"


def _say_failures(failures: list[Event], console: Console) -> None:
    """Each kind of failure once, in full for the first run that met it."""
    kinds: dict[str, list[Event]] = {}
    for failure in failures:
        kinds.setdefault(failure.message.strip().splitlines()[-1], []).append(failure)
    for group in kinds.values():
        runs = [describe(event.job) for event in group if event.job is not None]
        names = runs[0] + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
        console.print(f"FAILED {escape(names)}\n{escape(group[0].message.strip())}", highlight=False)


def _backend(request: Request, team: Team) -> tuple[Backend, int]:
    if team.size > 1:
        return together(team, request.out, request.data, request.authors), 1
    if request.ray:
        return on_ray(request.ray, request.out, request.data, request.authors), request.jobs
    return local(request.jobs, request.out, request.data, request.authors), request.jobs


def _publish(out: Path, console: Console) -> None:
    """Figures and report after a sweep."""
    from quadjoint.experiments.pictures import draw_all
    from quadjoint.experiments.report import write_report

    figures = draw_all(out, lambda message: None)
    report = write_report(out, lambda message: None, {path.stem: picture for path, picture in figures.items()})
    console.print(f"{len(figures)} figures in {out / 'figures'}, report in {report}", highlight=False, soft_wrap=True)


def _end(signum: int, frame: types.FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
