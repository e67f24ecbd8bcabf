"""One run from its configuration to its record."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from quadjoint.errors import SolveError
from quadjoint.experiments import store
from quadjoint.experiments.config import RunConfig, as_dict, run_key
from quadjoint.experiments.records import CLOCK
from quadjoint.experiments.registry import experiment
from quadjoint.experiments.timing import environment
from quadjoint.experiments.training import Context, Diverged


@dataclass(frozen=True)
class Job:
    """A run that is to be done."""

    experiment: str
    config: RunConfig

    @cached_property
    def key(self) -> str:
        return run_key(self.experiment, self.config)

    @property
    def alone(self) -> bool:
        """Whether nothing else may run beside it: it measures time, and neighbours share caches and memory with it."""
        return self.experiment == CLOCK


def checkpoint_path(out: Path, job: Job) -> Path:
    return out / "checkpoints" / f"{job.key}.pt"


def _trained_for(result: dict[str, Any]) -> float:
    """Seconds of all epochs and evaluations, also of those before an interruption."""
    curves = result.get("curves", {})
    return math.fsum([*curves.get("seconds", []), *curves.get("evaluation_seconds", [])])


def execute(job: Job, out: Path, context: Context) -> dict[str, Any]:
    """Do the run; the record says ``done``, or ``failed`` with the reason where the method itself gave up.

    A solve that cannot be finished or a loss that is no longer a number is an outcome of the method and is kept.
    Anything else is a fault of the program and is raised.
    """
    context = replace(context, checkpoint=checkpoint_path(out, job))
    made_by = environment()  # before anything runs: what is changed on the disk meanwhile does not run
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    clock = time.perf_counter()
    with torch.random.fork_rng():  # the caller's random state is its own
        torch.manual_seed(job.config.seed)
        try:
            status, result = "done", experiment(job.experiment).run(job.config, context)
        except (SolveError, Diverged) as error:
            status, result = "failed", {"reason": f"{type(error).__name__}: {error}"}
    return {
        "schema": store.SCHEMA,
        "key": job.key,
        "experiment": job.experiment,
        "config": as_dict(job.config),
        "status": status,
        "started": started,
        "seconds": max(time.perf_counter() - clock, _trained_for(result)),
        "environment": made_by | {"processes": context.team.size},
        "result": result,
    }
