"""Many runs at once: processes of this machine or torchrun's team (`cluster` has Ray's).

A backend is a generator of events. The driver (`sweep`) alone writes results, so that whatever is killed, a run is
either finished, with its line on the disk, or it goes on from its checkpoint next time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from quadjoint.experiments import store
from quadjoint.experiments.execute import Job, checkpoint_path, execute
from quadjoint.experiments.faults import Halt, Refusal
from quadjoint.experiments.registry import NAMES, experiment
from quadjoint.experiments.timing import environment
from quadjoint.experiments.training import Context, Progress
from quadjoint.experiments.workers import Team

TICK = 0.25  # seconds between two looks at the clock while nothing happens


@dataclass(frozen=True)
class Event:
    """Something happened: ``kind`` is started, progress, finished, failed, halted or tick."""

    kind: str
    job: Job | None = None
    progress: Progress | None = None
    record: dict[str, Any] = field(default_factory=dict)
    message: str = ""


Backend = Callable[[list[Job]], Generator[Event, None, None]]


def sweep(
    jobs: list[Job], backend: Backend, out: Path, watch: Callable[[Event], None], team: Team | None = None
) -> list[Event]:
    """Do all jobs that have no result yet; returns the failures. Every result is on the disk before it is shown.

    The first result or checkpoint that cannot be written ends all (`Halt`). In a team, all do the runs and the leader
    writes.
    """
    team = team or Team()
    results = out / store.RESULTS
    failures = []
    with store.locked(out / ".sweep.lock", wait=False) if team.leads else contextlib.nullcontext():
        if team.leads:
            for stale in (out / "checkpoints").glob("*.tmp"):
                stale.unlink(missing_ok=True)
        finished = store.read(results).keys()
        todo = list({job.key: job for job in jobs if job.key not in finished}.values())
        team.wait()  # nobody writes before all have read
        with contextlib.closing(backend(todo)) as events:
            for event in events:
                if event.kind == "failed":
                    failures.append(event)
                if event.kind == "halted":
                    raise Halt(event.message)
                if event.kind == "finished" and event.job is not None and team.leads:
                    _keep(results, event.record)
                    checkpoint_path(out, event.job).unlink(missing_ok=True)
                watch(event)
    return failures


def _keep(results: Path, record: dict[str, Any]) -> None:
    try:
        store.append(results, record)
    except OSError as error:
        raise Halt(f"{results} cannot be written: {error.strerror}") from error


def attempt(job: Job, out: Path, context: Context) -> tuple[str, Any]:
    """How a run ended, as it can be sent between processes: finished with its record, failed or halted with words."""
    try:
        return "finished", execute(job, out, context)
    except Halt as halt:
        return "halted", str(halt)
    except Refusal as refusal:
        return "failed", str(refusal)
    except Exception:
        return "failed", traceback.format_exc()


def alone_last(jobs: list[Job]) -> list[Job]:
    """The runs in the same order, but those that must be alone after all others."""
    return sorted(jobs, key=lambda job: job.alone)


def may_start(job: Job, running: Iterable[Job]) -> bool:
    """Whether the run may start beside those that are running."""
    others = list(running)
    return not others or not (job.alone or any(other.alone for other in others))


def ended(job: Job | None, kind: str, content: Any) -> Event:
    return Event(kind, job, record=content) if kind == "finished" else Event(kind, job, message=content)


# Processes of this machine ------------------------------------------------------------------------------


def local(workers: int, out: Path, data: Path | None = None, authors: Path | None = None) -> Backend:
    """``workers`` processes, one thread each, which live for the whole sweep.

    What must be alone comes last, one run at a time, while the other processes sleep.
    """

    def run(jobs: list[Job]) -> Generator[Event, None, None]:
        waiting = alone_last(jobs)[::-1]
        crew: list[_Worker] = []
        try:
            crew = [_Worker(out, data, authors) for _ in range(min(workers, len(waiting)))]
            while waiting or any(worker.job for worker in crew):
                for worker in crew:
                    running = (other.job for other in crew if other.job)
                    if worker.job is None and waiting and may_start(waiting[-1], running):
                        yield worker.give(waiting.pop())
                ready = wait([worker.pipe for worker in crew if worker.job], timeout=TICK)
                for worker in [w for w in crew if w.pipe in ready]:
                    event = worker.take()
                    if not worker.process.is_alive() and worker.job is None and event.kind == "failed":
                        crew[crew.index(worker)] = _Worker(out, data, authors)
                    yield event
                if not ready:
                    yield Event("tick")
        finally:
            for worker in crew:
                worker.end()

    return run


class _Worker:
    """A process that does one run after the other, and ends as soon as its parent does."""

    def __init__(self, out: Path, data: Path | None, authors: Path | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        lifeline, self.lifeline = context.Pipe(duplex=False)
        self.job: Job | None = None
        self.process: BaseProcess = context.Process(
            target=_serve, args=(theirs, lifeline, out, data, authors), daemon=True
        )
        with _environment(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR"), _deaf_to_ctrl_c():
            self.process.start()
        theirs.close()
        lifeline.close()

    def give(self, job: Job) -> Event:
        self.job = job
        with contextlib.suppress(BrokenPipeError):  # take() will say how it died
            self.pipe.send(job)
        return Event("started", job)

    def take(self) -> Event:
        """What the worker has to say, or that it is no more."""
        job = self.job
        try:
            kind, content = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            self.job = None
            return Event("failed", job, message=f"the process ended with code {self.process.exitcode} (out of memory?)")
        if kind == "progress":
            return Event("progress", job, progress=content)
        self.job = None
        return ended(job, kind, content)

    def end(self) -> None:
        self.lifeline.close()
        self.process.terminate()
        self.process.join(2)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _serve(pipe: Connection, lifeline: Connection, out: Path, data: Path | None, authors: Path | None) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer, also where it cannot be blocked
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    torch.set_num_threads(1)
    for name in NAMES:  # all code is that of now, and of the commit of now
        experiment(name)
    environment()
    said = 0.0

    def tell(progress: Progress) -> None:
        nonlocal said
        if time.monotonic() - said > 0.2:  # an epoch may take milliseconds
            said = time.monotonic()
            pipe.send(("progress", progress))

    context = Context(data=data, authors=authors, progress=tell)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            pipe.send(attempt(pipe.recv(), out, context))


def _end_with_parent(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(1)


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """A process that is started within this never hears Ctrl-C, not even while it imports; this one hears it after."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # which lets signals through when a first worker starts it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# torchrun -------------------------------------------------------------------------------------------------


def together(team: Team, out: Path, data: Path | None = None, authors: Path | None = None) -> Backend:
    """One run after the other in this process, each shared by torchrun's team; those that must be alone are refused."""

    def run(jobs: list[Job]) -> Generator[Event, None, None]:
        for job in jobs:
            if job.alone:
                yield Event("failed", job, message="the clock times one process; run it without torchrun")
                continue
            yield Event("started", job)
            record = execute(job, out, Context(data=data, authors=authors, team=team))
            team.wait()
            yield Event("finished", job, record=record)

    return run
