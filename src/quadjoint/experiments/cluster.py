"""The runs of a sweep as tasks of a Ray cluster."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch

from quadjoint.experiments.execute import Job
from quadjoint.experiments.faults import Refusal, one_line
from quadjoint.experiments.scheduler import TICK, Backend, Event, alone_last, attempt, ended, may_start
from quadjoint.experiments.training import Context


def on_ray(address: str, out: Path, data: Path | None = None, authors: Path | None = None) -> Backend:
    """Every run a task of a Ray cluster (``auto``, ``local`` or its address); the driver collects the results.

    Checkpoints lie where the task runs; with a file system that all machines share, an interrupted run resumes
    on any of them.
    """

    def run(jobs: list[Job]) -> Generator[Event, None, None]:
        ray = _ray(address)
        try:
            task = ray.remote(num_cpus=1, max_retries=0)(_ray_task)
            waiting = alone_last(jobs)[::-1]
            pending: dict[Any, Job] = {}
            places = max(1, int(ray.cluster_resources().get("CPU", 1)))
            while waiting or pending:
                while waiting and len(pending) < places and may_start(waiting[-1], pending.values()):
                    job = waiting.pop()
                    pending[task.remote(job, out, data, authors)] = job
                    yield Event("started", job)
                ready, _ = ray.wait(list(pending), num_returns=1, timeout=TICK)
                if not ready:
                    yield Event("tick")
                for reference in ready:
                    job = pending.pop(reference)
                    try:
                        kind, content = ray.get(reference)
                    except ray.exceptions.RayError as error:
                        kind, content = "failed", str(error)
                    yield ended(job, kind, content)
        finally:
            ray.shutdown()

    return run


def require_ray() -> None:
    """Refuse where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise Refusal("--ray needs Ray: pip install ray")


def _ray(address: str) -> Any:
    """Ray, connected to the cluster."""
    require_ray()
    import ray

    _require_answer(address)
    options = {"num_cpus": os.cpu_count()} if address == "local" else {"address": address}
    try:
        ray.init(**options, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise Refusal(f"no Ray cluster answers at {address!r}: {one_line(error)}") from None
    return ray


def _require_answer(address: str) -> None:
    """Refuse an address at which nobody listens: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, OverflowError, UnicodeError) as error:
            raise Refusal(f"no Ray cluster answers at {address!r}: {one_line(error)}") from None


def _ray_task(job: Job, out: Path, data: Path | None, authors: Path | None) -> tuple[str, Any]:
    torch.set_num_threads(1)
    return attempt(job, out, Context(data=data, authors=authors))
