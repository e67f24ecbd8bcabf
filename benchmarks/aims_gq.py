"""The aims for Gauss-Legendre collocation, ``gradient="gq"``."""

from __future__ import annotations

import math

from benchmarks.sweeps import PRECISION_CELLS, time_to_reach
from benchmarks.verdicts import DIRECT, Results, Row, judge, paper_method

GQ = "quadjoint:gq"
CLOSE = 1e-3  # gradient error at which work is compared
ROUNDING = 1e-5  # below this, errors are those of float32


def aims(r: Results) -> list[Row]:
    """Against torchdiffeq's direct, against the paper's method, and to reach a gradient error."""
    wide = r.of("spheres", width=lambda w: w >= 500)
    regimes = [
        ("sines, Ornstein-Uhlenbeck", r.of("sines", "ou"), 0.8, 0.6),
        ("spheres at 3x, width 500 and more", [c for c in wide if c.endswith("-3x")], 1.3, 1.0),
        ("spheres at 5x, width 500 and more", [c for c in wide if c.endswith("-5x")], 1.8, 1.0),
        ("crossing, width 2000", r.of("crossing", width=lambda w: w == 2000), 0.5, 1.0),
        ("convolutional state, batch 256", [c for c in r.of("conv") if c == "conv-256"], 1.3, 1.0),
    ]
    rows = [_time(r, regime, names, limit) for regime, names, limit, _ in regimes]
    rows += [_error(r, regime, names, limit) for regime, names, _, limit in regimes]
    return [*rows, _paper(r), _precision(r)]


def _time(r: Results, regime: str, names: list[str], limit: float) -> Row:
    values = {c: r.ratio(c, GQ, DIRECT) for c in names}
    return judge(regime, f"`gq` at most {limit}x the time of torchdiffeq's direct", values, lambda c, v: v <= limit)


def _error(r: Results, regime: str, names: list[str], limit: float) -> Row:
    def share(cell: str) -> float | None:
        ours, direct = r.error(cell, GQ), r.error(cell, DIRECT)
        return None if ours is None or direct is None else ours / direct

    def met(cell: str, value: float) -> bool:
        return value <= limit or (r.error(cell, GQ) or 0.0) <= ROUNDING

    aim = f"gradient error of `gq` at most {limit:g}x that of torchdiffeq's direct, or below {ROUNDING:g}"
    return judge(regime, aim, {c: share(c) for c in names}, met, form="{:.2g}")


def _paper(r: Results) -> Row:
    paper, note = paper_method(r)
    names = [c for c in r.of("sines", "ou") if c == "sines-200" or c.startswith("ou")]
    values = {c: r.ratio(c, paper, GQ) for c in names}
    aim = "`gq` 20x faster than the paper's method"
    return judge("sines 200, Ornstein-Uhlenbeck", aim, values, lambda c, v: v >= 20, form="{:.1f}x", note=note)


def _precision(results: Results) -> Row:
    values: dict[str, float | None] = {}
    for cell in PRECISION_CELLS:
        ours, direct = (time_to_reach(results.records, cell, m, CLOSE) for m in (GQ, "quadjoint:direct"))
        measured = any(r["kind"] == "precision" and (r["cell"], r["method"]) == (cell, GQ) for r in results.records)
        if direct is not None and measured:
            values[cell] = math.inf if ours is None else ours / direct
        else:
            values[cell] = None
    aim = f"`gq` reaches a gradient error of {CLOSE:g} in at most 0.8x the time of our `direct`"
    return judge("work against precision", aim, values, lambda c, v: v <= 0.8)
