"""A sweep of tiny runs in a process of its own, for the tests to kill: sweep_script.py OUT."""

from __future__ import annotations

import sys
from pathlib import Path

from quadjoint.experiments import crossing, nested_spheres, sines
from quadjoint.experiments.execute import Job
from quadjoint.experiments.scheduler import local, sweep

JOBS = [
    *(Job("crossing", crossing.Config(method=m, width=5, epochs=120, lr=1e-2)) for m in ("discrete", "direct")),
    *(Job("sines", sines.Config(method="gq", width=5, epochs=15, times=10, seed=s)) for s in (0, 1)),
    Job("nested-spheres", nested_spheres.Config(method="discrete", width=5, epochs=20, points=400)),
    Job("sines", sines.Config(method="adjoint", width=5, epochs=15, times=10)),
]


def watch(event) -> None:
    if event.kind != "tick":
        print(event.kind, event.job.key, flush=True)


if __name__ == "__main__":
    out = Path(sys.argv[1])
    sys.exit(len(sweep(JOBS, local(2, out), out, watch)))
