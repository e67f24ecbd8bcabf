"""A sweep of tiny runs in a process of its own, for the tests to kill: sweep_script.py OUT."""

from __future__ import annotations

import sys
from pathlib import Path

from quadjoint.experiments import crossing, nested_spheres, sines
from quadjoint.experiments.execute import Job
from quadjoint.experiments.scheduler import local, sweep

JOBS = [
    Job("crossing", crossing.Config(method="discrete", width=5, epochs=80, lr=1e-2)),
    Job("sines", sines.Config(method="gq", width=5, epochs=12, times=8)),
    Job("nested-spheres", nested_spheres.Config(method="discrete", width=5, epochs=10, points=400)),
    Job("crossing", crossing.Config(method="direct", width=5, epochs=80, lr=1e-2)),
]


def watch(event) -> None:
    if event.kind != "tick":
        print(event.kind, event.job.key, flush=True)


if __name__ == "__main__":
    out = Path(sys.argv[1])
    sys.exit(len(sweep(JOBS, local(2, out), out, watch)))
