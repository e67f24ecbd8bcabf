"""diffrax's Kvaerno5 on one batch of stiff problems, in a process of its own because of its float64.

    python benchmarks/stiff_diffrax.py PROBLEM BATCH RTOL ATOL TURNS FILE.npz

The controller is PIDController(pcoeff=0.3, icoeff=0.4). Compilation is not counted.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import threads  # isort: skip  # noqa: F401  # before jax
import numpy as np

from benchmarks.stiff_problems import PROBLEMS, draw

MAX_STEPS = 2**15


def run(name: str, batch: int, *, rtol: float, atol: float, turns: int) -> dict[str, Any]:
    import diffrax
    import jax

    jax.config.update("jax_enable_x64", True)
    jnp = jax.numpy
    problem = PROBLEMS[name]
    y0, p = draw(name, batch)
    start, parameters = jnp.asarray(y0), tuple(jnp.asarray(x) for x in p)
    control = diffrax.PIDController(rtol=rtol, atol=atol, pcoeff=0.3, icoeff=0.4)
    weights = jnp.asarray(problem.weights)

    def solve(y: Any, p: Any) -> Any:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: problem.f(jnp, y, args)),
            diffrax.Kvaerno5(),
            0.0,
            problem.end,
            None,
            y,
            args=p,
            saveat=diffrax.SaveAt(t1=True),
            stepsize_controller=control,
            max_steps=MAX_STEPS,
        )

    batched = jax.vmap(solve, in_axes=(0, 0 if problem.own_parameters else None))

    def forward(y: Any, p: Any) -> Any:
        solution = batched(y, p)
        return solution.ys[:, 0], solution.stats["num_accepted_steps"], solution.stats["num_rejected_steps"]

    def loss(y: Any, p: Any) -> Any:
        return (batched(y, p).ys[:, 0] * weights).sum()

    forward, gradient = jax.jit(forward), jax.jit(jax.grad(loss, argnums=(0, 1)))
    out: dict[str, Any] = {}
    for kind, function in (("forward", forward), ("gradient", gradient)):
        found = jax.block_until_ready(function(start, parameters))
        seconds = []
        for _ in range(turns):
            begin = time.perf_counter()
            jax.block_until_ready(function(start, parameters))
            seconds.append(time.perf_counter() - begin)
        out[f"seconds_{kind}"] = min(seconds)
        if kind == "forward":
            out["ys"], out["accepted"], out["rejected"] = (np.asarray(x) for x in found)
        else:
            out["grad_y0"] = np.asarray(found[0])
            out |= {f"grad_{i}": np.asarray(x) for i, x in enumerate(found[1])}
    return out


if __name__ == "__main__":
    name, batch, rtol, atol, turns, file = sys.argv[1:]
    np.savez(file, **run(name, int(batch), rtol=float(rtol), atol=float(atol), turns=int(turns)))
