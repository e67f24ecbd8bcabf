"""Invented records of runs, as the checks and figures read them."""

from __future__ import annotations

from typing import Any


def run(
    method: str, *, width: int = 10, seed: int = 0, study: str = "widths", result: Any = None, **config: Any
) -> dict:
    """A finished run; ``result`` is what it found."""
    settings = {"method": method, "width": width, "seed": seed, "study": study, **config}
    return {"config": settings, "status": "done", "result": {"final": {}, **(result or {})}}


def trained(method: str, numbers: list[float], metric: str = "m", **config: Any) -> list[dict]:
    """A run for each number, which is its final metric."""
    return [run(method, seed=k, result={"final": {metric: x}}, **config) for k, x in enumerate(numbers)]


def clocked(method: str, seconds: list[float], **config: Any) -> dict:
    """What the clock measured of a method, turn by turn."""
    steps = {"seconds": [2 * s for s in seconds], "cpu_seconds": seconds}
    middle = sorted(seconds)[len(seconds) // 2]
    result = {"steps": steps, "seconds_per_gradient": 2 * middle, "cpu_seconds_per_gradient": middle}
    return run(method, study="clock", result=result | config.pop("result", {}), **config)


def timed(method: str, seconds: list[float], **config: Any) -> list[dict]:
    """Trained runs without times of the processor, as older versions wrote them: a step's seconds for each seed."""
    return [run(method, seed=k, result={"seconds_per_gradient": s}, **config) for k, s in enumerate(seconds)]


def curved(
    method: str, curves: list[list[float]], name: str = "loss", second: float = 1.0, **config: Any
) -> list[dict]:
    """Runs with a curve each; every epoch of one step takes the same time."""
    return [
        run(
            method,
            seed=k,
            result={
                "curves": {name: values, "seconds": [9.0] * len(values), "cpu_seconds": [second] * len(values)},
                "epochs": len(values),
                "gradients": len(values),
                "cpu_seconds_per_gradient": second,
            },
            **config,
        )
        for k, values in enumerate(curves)
    ]
