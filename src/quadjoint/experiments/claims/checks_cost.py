"""Statements about evaluations and memory, checked."""

from __future__ import annotations

from quadjoint.experiments.claims.checks_time import timed
from quadjoint.experiments.records import WIDTHS, Records, by, of_study, value, where
from quadjoint.experiments.verdicts import (
    UNKNOWN,
    Check,
    Finding,
    Interval,
    Verdict,
    all_of,
    interval,
    plain,
    ranged,
    within,
)

MOST_NODES = 64  # of the paper's method, between two observations


def evaluations(method: str, low: float, high: float, *, of: str = "backward_evaluations") -> Check:
    """Evaluations of the backward pass over those of the forward pass lie between the two, over all trained runs.

    Of the paper's method, evaluations at nodes are counted apart from those of the backward solve. Runs that reached
    the largest number of nodes say nothing about their share.
    """

    def check(records: Records) -> Finding:
        shares = []
        for record in where(of_study(records, WIDTHS), method=method):
            forward, found = (value(record, "per_gradient", name) for name in ("forward_evaluations", of))
            nodes = value(record, "per_gradient", "quadrature_nodes") or 0.0
            if forward and found is not None and nodes < MOST_NODES:
                shares.append((found - nodes if of == "backward_evaluations" else found) / forward)
        if not shares:
            return UNKNOWN
        share = interval(shares)
        words = f"{ranged(share)} times as many as forwards, over {len(shares)} runs"
        return Finding(within(share, low, high), words)

    return check


def fewer_evaluations(first: str, second: str, low: float, high: float, *, of: str = "backward_evaluations") -> Check:
    """The first method's evaluations are fewer than the second's backward ones, by a part between the two."""

    def check(records: Records) -> Finding:
        trained = of_study(records, WIDTHS)
        mine = _by_cell(where(trained, method=first), of)
        theirs = _by_cell(where(trained, method=second), "backward_evaluations")
        saved = [1 - mine[cell] / theirs[cell] for cell in sorted(set(mine) & set(theirs)) if theirs[cell]]
        if not saved:
            return UNKNOWN
        found = interval(saved)
        words = f"{ranged(Interval(100 * found.middle, 100 * found.half))} % fewer than"
        if found.low < 0:  # nobody says that one needs -1 % fewer
            words = f"{ranged(Interval(1 - found.middle, found.half))} times as many as"
        return Finding(within(found, low, high), f"{first} needs {words} {second}")

    return check


def _by_cell(records: Records, of: str) -> dict[tuple[int, int], float]:
    found = {(r["config"]["width"], r["config"]["seed"]): value(r, "per_gradient", of) for r in records}
    return {cell: number for cell, number in found.items() if number is not None}


# Memory: bytes of tensors are counted, not sampled; there is no noise in them -----------------------------


def leaner(first: str, second: str) -> Check:
    """At every width, one gradient of the first method needs less memory than one of the second.

    If widths differ it is open.
    """

    def check(records: Records) -> Finding:
        peaks: dict[str, dict[int, float]] = {first: {}, second: {}}
        for record in timed(records):
            peak, method = value(record, "peak_memory"), record["config"]["method"]
            if peak and method in peaks:
                peaks[method][record["config"]["width"]] = peak
        widths = sorted(set(peaks[first]) & set(peaks[second]))
        if not widths:
            return UNKNOWN
        less = {width: peaks[first][width] < peaks[second][width] for width in widths}
        ends = dict.fromkeys((widths[0], widths[-1]))
        pairs = [", ".join(f"{m} {plain(peaks[m][w] / 2**20, 3)} MiB" for m in (first, second)) for w in ends]
        words = "peak " + "; ".join(f"at width {width}: {pair}" for width, pair in zip(ends, pairs, strict=True))
        if len(set(less.values())) > 1:
            words += f"; {first} needs less at {sum(less.values())} of {len(widths)} widths"
            return Finding(Verdict.UNDECIDED, words)
        return Finding(Verdict.AGREES if all(less.values()) else Verdict.DISAGREES, words)

    return check


def constant_memory(method: str) -> Check:
    """From the loosest to the tightest tolerance the peak grows by less than a quarter, with every size of the state.

    If the sizes differ, it is open: beside a state of one number, as the paper has it, bookkeeping is most of the peak.
    """

    def check(records: Records) -> Finding:
        mine = [r for r in where(records, method=method) if r["result"].get("peak_memory")]
        if not mine:
            return UNKNOWN
        words, verdicts = [], []
        for (width,), group in by(mine, "width").items():
            first, *_, last = group[0]["result"]["peak_memory"]
            words.append(f"{_bytes(first)} at the loosest tolerance, {_bytes(last)} at the tightest, {_state(width)}")
            verdicts.append(Verdict.AGREES if last <= 1.25 * first else Verdict.DISAGREES)
        verdict = verdicts[0] if len(set(verdicts)) == 1 else Verdict.UNDECIDED
        return Finding(verdict, f"{method}: {'; '.join(words)}")

    return check


def less_memory(first: str, second: str) -> Check:
    """At the tightest tolerance the first method needs less than the second, with every size of the state.

    Equal numbers decide nothing: what both need besides is then the most.
    """

    def check(records: Records) -> Finding:
        verdicts, words = [], []
        for (width,), here in by(records, "width").items():
            peaks = {r["config"]["method"]: r["result"]["peak_memory"][-1] for r in here}
            if first in peaks and second in peaks:
                one, other = peaks[first], peaks[second]
                less = Verdict.AGREES if one < other else Verdict.DISAGREES
                verdicts.append(Verdict.UNDECIDED if one == other else less)
                words.append(f"{first} {_bytes(one)}, {second} {_bytes(other)}, {_state(width)}")
        return Finding(all_of(verdicts), "; ".join(words)) if verdicts else UNKNOWN

    return check


def _state(width: int) -> str:
    return f"with a state of {'one number' if width == 1 else f'{width} numbers'}"


def _bytes(count: float) -> str:
    return f"{count:,.0f} bytes" if count < 100_000 else f"{plain(count / 2**20, 3)} MiB"
