"""The aims of the project, each with what was measured and whether it is met.

Ratios of times are medians over turns of one run. "Error no worse" means: at most 1.5 times the gradient error of
torchdiffeq's direct method (two solvers never take the same steps), or below 1e-5, where float32 rounding begins.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks import aims_gq
from benchmarks.forward import AIM as FORWARD_AIM
from benchmarks.forward import ratios as forward_ratios
from benchmarks.sweeps import bytes_per_step
from benchmarks.verdicts import DIRECT, Record, Results, Row, judge, paper_method

AUTO = "quadjoint:auto"
DISCRETE, LEAN = "quadjoint:discrete", "quadjoint:discrete-lean"  # the latter keeps no activations at all
EXACT = ("direct", "discrete", "discrete-lean", "discrete-joint", "discrete-stacked")  # that auto chooses from


def aims(records: Iterable[Record]) -> list[Row]:
    results = Results(records)
    rows = [
        *_against_direct(results),
        *_memory(results),
        *_against_paper(results),
        *aims_gq.aims(results),
        _compiled(results),
        _irregular(results),
        _auto(results),
        _forward(results),
    ]
    return rows


def _against_direct(r: Results) -> list[Row]:
    """Against backpropagation through torchdiffeq's solver; the lean gradient where the aim speaks of its memory."""

    def row(regime: str, names: list[str], limit: float, method: str = DISCRETE) -> Row:
        aim = f"`{method.split(':')[1]}` at most {limit}x the time of torchdiffeq's direct, error no worse"
        values = {c: r.ratio(c, method, DIRECT) for c in names}
        return judge(regime, aim, values, lambda c, v: v <= limit and r.no_worse(c, method))

    crossing = [
        ("crossing, widths 20 to 500", lambda w: w <= 500, 0.6),
        ("crossing, width 2000", lambda w: w == 2000, 0.5),
        ("crossing, width 3000", lambda w: w == 3000, 0.3),
    ]
    rows = [row("sines, many observations", r.of("sines"), 0.7), row("Ornstein-Uhlenbeck", r.of("ou"), 0.7)]
    rows.append(row("sines, Ornstein-Uhlenbeck", r.of("sines", "ou"), 0.7, AUTO))
    rows += [row(name, r.of("crossing", width=width), limit, AUTO) for name, width, limit in crossing]
    rows.append(row("spheres, width 500 and more", r.of("spheres", width=lambda w: w >= 500), 1.35, LEAN))
    return rows


def _memory(r: Results) -> list[Row]:
    """Peak tensor memory of the lean gradient against what it has to hold."""

    def lean(record: Record) -> int:
        """What is kept of every accepted step: its end and seven stages, each as large as the state."""
        return int(8 * record["steps"]["accepted"] * record["state_bytes"])

    def share(cell: str) -> float | None:
        """Memory beyond weight-sized tensors, in units of the activations of one evaluation plus the stored states."""
        record = r.by.get((cell, LEAN))
        if record is None or record["peak_bytes"] is None:
            return None
        extra = max(0, record["peak_bytes"] - 2 * record["parameter_bytes"])
        return float(extra / (record["activation_bytes"] + lean(record)))

    def against_direct(cell: str) -> float | None:
        ours, direct = r.by.get((cell, DISCRETE)), r.by.get((cell, DIRECT))
        if ours is None or direct is None or ours["peak_bytes"] is None or direct["peak_bytes"] is None:
            return None
        return float(ours["peak_bytes"] / direct["peak_bytes"])

    wide = r.of("spheres", width=lambda w: w >= 500)
    small = r.of("sines", "ou")
    return [
        judge(
            "spheres, width 500 and more",
            "memory of one evaluation's activations and the stored states "
            "(at most twice their sum, besides two sets of weights: one evaluation is differentiated at a time)",
            {c: share(c) for c in wide},
            lambda c, v: v <= 2,
            form="{:.1f}x",
        ),
        _growth(r),
        judge(
            "sines, Ornstein-Uhlenbeck",
            "peak memory of `discrete` below that of torchdiffeq's direct",
            {c: against_direct(c) for c in small},
            lambda c, v: v < 1,
        ),
    ]


def _growth(r: Results) -> Row:
    """Memory for each further step of a fixed grid: stored states, or activations?"""
    aim = "memory for each further step that of its stored states (at most 1.5x), not of its activations"
    lean, direct = (bytes_per_step(r.records, method) for method in (DISCRETE, "quadjoint:direct"))
    stored = next((x["stored_bytes"] for x in r.records if x["kind"] == "memory"), 1)
    note = "" if direct is None else f"direct {direct / stored:.0f}x"
    values = {"rk4, sines": None if lean is None else lean / stored}
    return judge("any, more steps", aim, values, lambda c, v: v <= 1.5, form="{:.1f}x", note=note)


def _against_paper(r: Results) -> list[Row]:
    paper, note = paper_method(r)

    def faster(cell: str) -> float | None:
        return r.ratio(cell, paper, DISCRETE)

    def error_gain(cell: str) -> float | None:
        ours, theirs = r.error(cell, DISCRETE), r.error(cell, paper)
        return None if ours is None or theirs is None else theirs / ours

    three, five = r.of("spheres", ending="-3x"), r.of("spheres", ending="-5x")
    return [
        judge(
            "the paper's method, sines and Ornstein-Uhlenbeck",
            "`discrete` 10x faster",
            {c: faster(c) for c in r.of("sines", "ou")},
            lambda c, v: v >= 10,
            form="{:.1f}x",
            note=note,
        ),
        judge(
            "the paper's method, spheres",
            "`discrete` at least as fast",
            {c: faster(c) for c in r.of("spheres")},
            lambda c, v: v >= 1,
            form="{:.1f}x",
            note=note,
        ),
        judge(
            "the paper's method, spheres at 3x",
            "10x less gradient error",
            {c: error_gain(c) for c in three},
            lambda c, v: v >= 10,
            form="{:.0f}x",
            note=note,
        ),
        judge(
            "the paper's method, spheres at 5x",
            "gradient right to 5 % (the paper's error in the table above)",
            {c: r.error(c, DISCRETE) for c in five},
            lambda c, v: v <= 0.05,
            form="{:.0e}",
        ),
    ]


def over_diffrax(r: Results, widest: int) -> dict[str, float | None]:
    """The time of ``compile=True`` over that of the faster of diffrax's two gradients, of small networks."""

    def ratio(cell: str) -> float | None:
        both = [r.ratio(cell, "quadjoint:auto-compiled", f"diffrax:{m}") for m in ("checkpointed", "backsolve")]
        return max((x for x in both if x is not None), default=None)

    return {c: ratio(c) for c in r.of("spheres", "sines", "crossing", "ou", width=lambda w: w <= widest)}


def _compiled(r: Results) -> Row:
    aim = "`auto` with compile=True no slower than diffrax under jit (the faster of its two gradients)"
    return judge("small networks, width 5 to 100", aim, over_diffrax(r, 100), lambda c, v: v <= 1)


def _irregular(r: Results) -> Row:
    values = {}
    for cell in r.of("irregular", ending="-per-sample"):
        name = cell.removesuffix("-per-sample")
        values[name] = r.ratio(cell, "quadjoint:auto", "quadjoint:auto", other=f"{name}-regular")
    aim = "`auto` with times per sample at most 1.5x the cost of regular times"
    return judge("irregular times", aim, values, lambda c, v: v <= 1.5)


def _auto(r: Results) -> Row:
    """Against the fastest of the methods that ``auto`` chooses from; the memory allowed by default holds them all."""

    def ratio(cell: str) -> float | None:
        each = [r.ratio(cell, "quadjoint:auto", f"quadjoint:{m}") for m in EXACT]
        return max((x for x in each if x is not None), default=None)

    names = [c for c, family in r.cells.items() if family != "tiny"]
    aim = "`auto` within 10 % of the best exact method"
    return judge("every cell", aim, {c: ratio(c) for c in names}, lambda c, v: v <= 1.1)


def _forward(r: Results) -> Row:
    aim = f"forward solve at most {FORWARD_AIM}x the time of torchdiffeq's"
    return judge("small networks, forward only", aim, {**forward_ratios(r.records)}, lambda c, v: v <= FORWARD_AIM)
