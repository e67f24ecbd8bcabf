"""Statements about evaluations, memory, errors of gradients and of integrals, checked."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable

from quadjoint.experiments.checks_time import timed
from quadjoint.experiments.records import Records, by, of_study, value, where
from quadjoint.experiments.verdicts import (
    UNKNOWN,
    Finding,
    Interval,
    Verdict,
    above,
    all_of,
    interval,
    plain,
    ranged,
    short,
    within,
)

Check = Callable[[Records], Finding]
MOST_NODES = 64  # of the paper's method, between two observations


def evaluations(method: str, low: float, high: float, *, of: str = "backward_evaluations") -> Check:
    """Evaluations of the backward pass over those of the forward pass lie between the two, over all trained runs.

    Of the paper's method, evaluations at nodes are counted apart from those of the backward solve. Runs that reached
    the largest number of nodes say nothing about their share.
    """

    def check(records: Records) -> Finding:
        shares = []
        for record in where(of_study(records, "widths"), method=method):
            forward, found = (value(record, "per_gradient", name) for name in ("forward_evaluations", of))
            nodes = value(record, "per_gradient", "quadrature_nodes") or 0.0
            if forward and found is not None and nodes < MOST_NODES:
                shares.append((found - nodes if of == "backward_evaluations" else found) / forward)
        if not shares:
            return UNKNOWN
        share = interval(shares)
        return Finding(within(share, low, high), f"{ranged(share)} of the forward ones, over {len(shares)} runs")

    return check


def fewer_evaluations(first: str, second: str, low: float, high: float, *, of: str = "backward_evaluations") -> Check:
    """The first method's evaluations are fewer than the second's backward ones, by a part between the two."""

    def check(records: Records) -> Finding:
        trained = of_study(records, "widths")
        mine = _by_cell(where(trained, method=first), of)
        theirs = _by_cell(where(trained, method=second), "backward_evaluations")
        saved = [1 - mine[cell] / theirs[cell] for cell in sorted(set(mine) & set(theirs)) if theirs[cell]]
        if not saved:
            return UNKNOWN
        found = interval(saved)
        shown = Interval(100 * found.middle, 100 * found.half)
        return Finding(within(found, low, high), f"{first} needs {ranged(shown)} % fewer than {second}")

    return check


def _by_cell(records: Records, of: str) -> dict[tuple[int, int], float]:
    found = {(r["config"]["width"], r["config"]["seed"]): value(r, "per_gradient", of) for r in records}
    return {cell: number for cell, number in found.items() if number is not None}


# Memory: bytes of tensors are counted, not sampled; there is no noise in them -----------------------------


def leaner(first: str, second: str) -> Check:
    """At the largest width, one gradient of the first method needs less memory than one of the second."""

    def check(records: Records) -> Finding:
        peaks: dict[str, dict[int, float]] = {first: {}, second: {}}
        for record in timed(records):
            peak, method = value(record, "peak_memory"), record["config"]["method"]
            if peak and method in peaks:
                peaks[method][record["config"]["width"]] = peak
        widths = sorted(set(peaks[first]) & set(peaks[second]))
        if not widths:
            return UNKNOWN
        a, b = (peaks[m][widths[-1]] / 2**20 for m in (first, second))
        words = f"peak at width {widths[-1]}: {first} {plain(a, 3)} MiB, {second} {plain(b, 3)} MiB"
        return Finding(Verdict.AGREES if a < b else Verdict.DISAGREES, words)

    return check


def constant_memory(method: str) -> Check:
    """From the loosest to the tightest tolerance the peak grows by less than a quarter (at the largest state)."""

    def check(records: Records) -> Finding:
        mine = [r for r in records if r["config"]["method"] == method and r["result"].get("peak_memory")]
        if not mine:
            return UNKNOWN
        record = max(mine, key=lambda r: r["config"]["width"])
        first, *_, last = record["result"]["peak_memory"]
        words = f"{method}: {_bytes(first)} at the loosest tolerance, {_bytes(last)} at the tightest"
        return Finding(Verdict.AGREES if last <= 1.25 * first else Verdict.DISAGREES, words)

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
                state = "a number" if width == 1 else f"{width} numbers"
                words.append(f"state of {state}: {first} {_bytes(one)}, {second} {_bytes(other)}")
        return Finding(all_of(verdicts), "; ".join(words)) if verdicts else UNKNOWN

    return check


def _bytes(count: float) -> str:
    return f"{count:,.0f} bytes" if count < 100_000 else f"{plain(count / 2**20, 3)} MiB"


# The exponential, whose gradients are known: solves are exact computations, the spread is over end times ----


def log_errors(records: Records, first: str, second: str, of: str) -> Interval | None:
    """The logarithm of the first method's error over the second's, over the end times of one tolerance."""
    pair = [next((r["result"]["errors"][of] for r in where(records, method=m)), None) for m in (first, second)]
    if pair[0] is None or pair[1] is None:
        return None
    logs = [math.log(a / b) for a, b in zip(*pair, strict=True) if a > 0 and b > 0]
    return interval(logs) if logs else None


def close_errors(first: str, second: str, factor: float, of: tuple[str, ...] = ("a",)) -> Check:
    """Two methods' errors of quantities differ by at most a factor, on average over end times, at each tolerance."""
    return _errors(first, second, of, lambda found: within(found, -math.log(factor), math.log(factor)))


def larger_errors(first: str, second: str, of: tuple[str, ...]) -> Check:
    """The first method's errors of the gradients are larger than the second's, at each tolerance."""
    return _errors(first, second, of, lambda found: above(found, 0.0))


def _errors(first: str, second: str, of: tuple[str, ...], judge: Callable[[Interval], Verdict]) -> Check:
    def check(records: Records) -> Finding:
        verdicts, words = [], []
        for setting, part in _tolerances(records, (first, second)):
            every = {name: log_errors(part, first, second, name) for name in of}
            known = {name: found for name, found in every.items() if found is not None}
            verdicts += [judge(found) for found in known.values()]
            factors = [f"{_factor(found)} of {_quantity(name)}" for name, found in known.items()]
            words += [f"at {setting} {', '.join(factors)}"] if known else []
        if not verdicts:
            return UNKNOWN
        return Finding(all_of(verdicts), f"{first}’s error over {second}’s, {'; '.join(words)}")

    return check


def _tolerances(records: Records, methods: tuple[str, str]) -> list[tuple[str, Records]]:
    """The records of each tolerance, which is named with the C of the paper's method if that takes part."""
    named = []
    for (rtol,), part in reversed(by(records, "rtol").items()):
        c = {r["config"].get("c") for r in part} if "gq-paper" in methods else set()
        with_c = "".join(f", C = {short(number)}" for number in c if number)
        named.append((f"rtol {short(rtol)}{with_c}", part))
    return named


def _factor(found: Interval) -> str:
    return plain(math.exp(found.middle), 3)


def _quantity(name: str) -> str:
    return "the loss" if name == "loss" else f"the gradient in {name}"


# Rules of integration ---------------------------------------------------------------------------------------


def order(rule: str, wanted: float, slack: float) -> Check:
    """The error of the rule falls with this power of the number of evaluations, once it falls as it should."""

    def check(records: Records) -> Finding:
        result = next((r["result"] for r in where(records, method=rule)), None)
        if result is None:
            return UNKNOWN
        slopes = [
            math.log(errors[0] / errors[1]) / math.log((counts[1] - shift) / (counts[0] - shift))
            for shift in [0 if rule == "monte-carlo" else 1]  # n panels have n + 1 points
            for counts, errors in zip(_pairs(result["evaluations"]), _pairs(result["errors"]), strict=True)
            if min(errors) > 1e-10
        ]
        last = slopes if rule == "monte-carlo" else slopes[-1:]  # the former is a matter of chance
        if not last:
            return UNKNOWN
        found = statistics.fmean(last)
        words = f"the error falls with the power {plain(found, 3)} of the number of intervals"
        verdict = Verdict.AGREES if abs(found - wanted) < slack else Verdict.DISAGREES
        return Finding(verdict, words.replace("intervals", "points") if rule == "monte-carlo" else words)

    return check


def _pairs(numbers: list[float]) -> list[tuple[float, float]]:
    return list(itertools.pairwise(numbers))


def most_accurate(rule: str, others: tuple[str, ...], counts: tuple[int, ...], *, least: bool = False) -> Check:
    """With about so many evaluations, the rule has the smallest error of all; the largest if the least accurate."""

    def check(records: Records) -> Finding:
        verdicts, words = [], []
        for count in counts:
            errors = {m: _error_at(records, m, count) for m in (rule, *others)}
            known = {m: e for m, e in errors.items() if e is not None}
            if rule in known and len(known) > 1:
                extreme = max(known.values()) if least else min(known.values())
                verdicts.append(Verdict.AGREES if known[rule] == extreme else Verdict.DISAGREES)
                words.append(f"{count} points: {', '.join(f'{m} {plain(e, 1)}' for m, e in known.items())}")
        return Finding(all_of(verdicts), "; ".join(words)) if verdicts else UNKNOWN

    return check


def _error_at(records: Records, rule: str, count: int) -> float | None:
    """The error with the largest number of evaluations that is not above the count."""
    result = next((r["result"] for r in where(records, method=rule)), None)
    known = [] if result is None else list(zip(result["evaluations"], result["errors"], strict=True))
    fitting = [(n, error) for n, error in known if n <= count]
    return max(fitting)[1] if fitting else None
