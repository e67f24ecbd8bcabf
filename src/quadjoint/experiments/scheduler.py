"""Many runs at once: processes of this machine, the tasks of a Ray cluster, or torchrun's team.

A backend is a generator of events. The driver (`sweep`) alone writes results, so that whatever is killed, a run is
either finished, with its line on the disk, or it goes on from its checkpoint next time.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from quadjoint.experiments import store
from quadjoint.experiments.execute import Job, checkpoint_path, execute
from quadjoint.experiments.training import Context, Progress
from quadjoint.experiments.workers import Team

_TICK = 0.25  # seconds between two looks at the clock while nothing happens


@dataclass(frozen=True)
class Event:
    """Something happened: ``kind`` is started, progress, finished, failed or tick."""

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

    In a team, all do the runs and the leader writes.
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
                if event.kind == "finished" and event.job is not None and team.leads:
                    store.append(results, event.record)
                    checkpoint_path(out, event.job).unlink(missing_ok=True)
                watch(event)
    return failures


# Processes of this machine ------------------------------------------------------------------------------


def local(workers: int, out: Path, data: Path | None = None) -> Backend:
    """``workers`` processes, one thread each, which live for the whole sweep."""

    def run(jobs: list[Job]) -> Generator[Event, None, None]:
        waiting = jobs[::-1]
        crew: list[_Worker] = []
        try:
            crew = [_Worker(out, data) for _ in range(min(workers, len(waiting)))]
            while waiting or any(worker.job for worker in crew):
                for worker in crew:
                    if worker.job is None and waiting:
                        yield worker.give(waiting.pop())
                ready = wait([worker.pipe for worker in crew if worker.job], timeout=_TICK)
                for worker in [w for w in crew if w.pipe in ready]:
                    event = worker.take()
                    if not worker.process.is_alive() and worker.job is None and event.kind == "failed":
                        crew[crew.index(worker)] = _Worker(out, data)
                    yield event
                if not ready:
                    yield Event("tick")
        finally:
            for worker in crew:
                worker.end()

    return run


class _Worker:
    """A process that does one run after the other, and ends as soon as its parent does."""

    def __init__(self, out: Path, data: Path | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        lifeline, self.lifeline = context.Pipe(duplex=False)
        self.job: Job | None = None
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, lifeline, out, data), daemon=True)
        with _environment(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR"):
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
        if kind == "finished":
            return Event("finished", job, record=content)
        return Event("failed", job, message=content)

    def end(self) -> None:
        self.lifeline.close()
        self.process.terminate()
        self.process.join(2)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _serve(pipe: Connection, lifeline: Connection, out: Path, data: Path | None) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    torch.set_num_threads(1)
    said = 0.0

    def tell(progress: Progress) -> None:
        nonlocal said
        if time.monotonic() - said > 0.2:  # an epoch may take milliseconds
            said = time.monotonic()
            pipe.send(("progress", progress))

    context = Context(data=data, progress=tell)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            job = pipe.recv()
            try:
                answer: tuple[str, Any] = ("finished", execute(job, out, context))
            except Exception:
                answer = ("failed", traceback.format_exc())
            pipe.send(answer)


def _end_with_parent(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(1)


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


def together(team: Team, out: Path, data: Path | None = None) -> Backend:
    """One run after the other in this process, each shared by torchrun's team."""

    def run(jobs: list[Job]) -> Generator[Event, None, None]:
        for job in jobs:
            yield Event("started", job)
            record = execute(job, out, Context(data=data, team=team))
            team.wait()
            yield Event("finished", job, record=record)

    return run


# Ray --------------------------------------------------------------------------------------------------------


def on_ray(address: str, out: Path, data: Path | None = None) -> Backend:
    """Every run a task of a Ray cluster (``auto``, ``local`` or its address); the driver collects the results.

    Checkpoints lie where the task runs; with a file system that all machines share, an interrupted run resumes
    on any of them.
    """

    def run(jobs: list[Job]) -> Generator[Event, None, None]:
        try:
            import ray
        except ImportError as error:
            raise RuntimeError("--ray needs Ray: pip install 'quadjoint[ray]'") from error
        options = {"num_cpus": os.cpu_count()} if address == "local" else {"address": address}
        ray.init(**options, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        try:
            task = ray.remote(num_cpus=1, max_retries=0)(_ray_task)
            waiting = jobs[::-1]
            pending: dict[Any, Job] = {}
            places = max(1, int(ray.cluster_resources().get("CPU", 1)))
            while waiting or pending:
                while waiting and len(pending) < places:
                    job = waiting.pop()
                    pending[task.remote(job, out, data)] = job
                    yield Event("started", job)
                ready, _ = ray.wait(list(pending), num_returns=1, timeout=_TICK)
                if not ready:
                    yield Event("tick")
                for reference in ready:
                    job = pending.pop(reference)
                    try:
                        yield Event("finished", job, record=ray.get(reference))
                    except ray.exceptions.RayError as error:
                        yield Event("failed", job, message=str(error))
        finally:
            ray.shutdown()

    return run


def _ray_task(job: Job, out: Path, data: Path | None) -> dict[str, Any]:
    torch.set_num_threads(1)
    return execute(job, out, Context(data=data))
