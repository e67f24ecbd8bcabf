"""From a request on the command line to finished runs, figures and report."""

from __future__ import annotations

import signal
import types
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from rich.console import Console
from rich.markup import escape

from quadjoint.experiments import store
from quadjoint.experiments.config import Choice
from quadjoint.experiments.display import Board, describe
from quadjoint.experiments.execute import Job
from quadjoint.experiments.faults import Refusal
from quadjoint.experiments.registry import NAMES, experiment
from quadjoint.experiments.scheduler import Backend, local, on_ray, sweep, together
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
    jobs: int = 1
    ray: str | None = None
    list_only: bool = False


def reproduce(request: Request, console: Console) -> int:
    """Do all runs of the request that are not done yet; returns the exit code."""
    _check(request)
    jobs = _with_data(planned(request), request, console)
    results = store.read(request.out)
    for problem in results.problems:
        console.print(escape(problem), highlight=False)
    finished = results.keys()
    todo = [job for job in jobs if job.key not in finished]
    if request.list_only:
        for job in jobs:
            console.print(f"{'waiting' if job in todo else 'done   '} {escape(describe(job))}", highlight=False)
        return 0
    team = join(request.device)
    if not team.leads:
        console = Console(quiet=True)
    before = len(jobs) - len(todo)
    console.print(f"{len(jobs)} runs, {before} of them done before; results in {request.out}", highlight=False)
    try:
        return _sweep(request, jobs, todo, team, console)
    finally:
        leave(team)


def planned(request: Request) -> list[Job]:
    """The runs of the request, those done before among them."""
    try:
        choice = Choice(request.preset, request.methods, request.widths, request.seeds, request.device)
        names = NAMES if request.name == "all" else (request.name,)
        modules = [experiment(name) for name in names]
    except ValueError as error:
        raise Refusal(str(error)) from None
    known = {method for module in modules for method in module.METHODS}
    if unknown := sorted(set(request.methods or ()) - known):
        raise Refusal(f"no method {', '.join(unknown)} here; choose from {', '.join(sorted(known))}")
    return slow_first([Job(module.NAME, config) for module in modules for config in module.grid(choice)])


# From long runs to short ones, so that no process is left with a long run when the others have none.
_EXPERIMENTS = ("ou", "images", "sines", "nested-spheres", "crossing", "memory", "toy-gradient")
_METHODS = ("torchsde-adjoint", "torchsde-direct", "adjoint", "seminorm", "gq-paper", "gq")


def slow_first(jobs: list[Job]) -> list[Job]:
    """The runs in the order in which to start them: long experiments, wide models and slow methods first."""

    def place(job: Job) -> tuple[int, int, int]:
        rank = _METHODS.index(job.config.method) if job.config.method in _METHODS else len(_METHODS)
        return _EXPERIMENTS.index(job.experiment), -job.config.width, rank

    return sorted(jobs, key=place)


def _with_data(jobs: list[Job], request: Request, console: Console) -> list[Job]:
    """Without the runs whose data are not there, which is said; refused if that leaves none."""
    absent: dict[str, str] = {}
    kept = []
    for job in jobs:
        lacks = getattr(experiment(job.experiment), "missing", None)
        complaint = lacks(job.config, request.data) if lacks else None
        if complaint is None:
            kept.append(job)
        else:
            absent[complaint] = job.experiment
    if jobs and not kept:
        raise Refusal("; ".join(absent))
    for complaint, name in absent.items():
        console.print(f"{name}: runs left out, {complaint}", highlight=False, markup=False, soft_wrap=True)
    return kept


def _check(request: Request) -> None:
    try:
        torch.zeros(1, device=request.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise Refusal(f"the device {request.device!r} cannot be used here: {reason}") from None
    if request.ray and under_torchrun():
        raise Refusal("--ray and torchrun exclude each other")


def _sweep(request: Request, jobs: list[Job], todo: list[Job], team: Team, console: Console) -> int:
    backend, workers = _backend(request, team)
    board = Board(todo, done_before=len(jobs) - len(todo), workers=workers, console=console)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        with board:
            failures = sweep(todo, backend, request.out, board, team)
    except store.Busy as busy:
        raise Refusal(str(busy)) from None
    except KeyboardInterrupt:
        console.print(
            f"Stopped: {board.done} of {board.total} runs are done and kept in {request.out}. "
            "The same command goes on from here.",
            highlight=False,
        )
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    for failure in failures:
        if failure.job is not None:
            console.print(f"FAILED {escape(describe(failure.job))}\n{escape(failure.message)}", highlight=False)
    console.print(f"{board.done - len(failures)} of {board.total} runs done.", highlight=False)
    if team.leads:
        _publish(request.out, console)
    return 1 if failures else 0


def _backend(request: Request, team: Team) -> tuple[Backend, int]:
    if team.size > 1:
        return together(team, request.out, request.data), 1
    if request.ray:
        return on_ray(request.ray, request.out, request.data), request.jobs
    return local(request.jobs, request.out, request.data), request.jobs


def _publish(out: Path, console: Console) -> None:
    """Figures and report after a sweep."""
    from quadjoint.experiments.plots import draw_all
    from quadjoint.experiments.report import write_report

    figures = draw_all(out, lambda message: None)
    report = write_report(out, lambda message: None, {path.stem: picture for path, picture in figures.items()})
    console.print(f"{len(figures)} figures in {out / 'figures'}, report in {report}", highlight=False, soft_wrap=True)


def _end(signum: int, frame: types.FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
