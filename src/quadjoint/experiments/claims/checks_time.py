"""Statements about time, checked: on the clock's steps in turns where it has run, else on the times of trained runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from quadjoint.experiments.records import (
    CLOCK,
    WIDTHS,
    Record,
    Records,
    by,
    by_size,
    of_study,
    repeated_seconds,
    step_seconds,
    value,
    where,
)
from quadjoint.experiments.verdicts import (
    UNKNOWN,
    Check,
    Finding,
    Interval,
    Verdict,
    above,
    all_of,
    below,
    difference,
    interval,
    plain,
    ranged,
    within,
)

FASTER = 1.05  # a twentieth less time, or it is not called faster
LARGE = 500  # widths from which a model is called large,
SMALL = 20  # and up to which it has few parameters


def timed(records: Records) -> Records:
    """What times are taken from: of each size the clock's lines if there are any, else training."""
    trained, clocked = by_size(of_study(records, WIDTHS, "batch")), by_size(of_study(records, CLOCK))
    return [record for group in (trained | clocked).values() for record in group]


def log_ratio(records: Records, first: str, second: str) -> Interval | None:
    """The logarithm of the second method's time over the first's, at one width."""
    one, other = (where(records, method=method) for method in (first, second))
    return time_ratio(one, other, list(by(records, "method").values()))


def time_ratio(one: Records, other: Records, alike: Sequence[Records]) -> Interval | None:
    """The logarithm of the others' time over that of the first ones, which differ in one setting.

    Of the clock, turn by turn; of training, seed by seed. The epochs of a run are no repetitions of it: the spread of a
    single seed is that of ``alike``, groups of runs that differ in nothing but the seed.
    """
    a, b = runs_by_seed(one), runs_by_seed(other)
    common = sorted(set(a) & set(b))
    turns = [pair for seed in common for pair in _turns(a[seed], b[seed])]
    if turns:
        return interval(turns)
    steps = [(step_seconds(a[seed]), step_seconds(b[seed])) for seed in common]
    logs = [math.log(y / x) for x, y in steps if x and y]
    if len(logs) > 1:
        return interval(logs)
    if not logs:
        return None
    spread = [[math.log(s) for r in group if (s := step_seconds(r))] for group in alike]
    return Interval(logs[0], difference([0.0], [0.0], spread).half)


def _turns(one: Record, other: Record) -> list[float]:
    """Logarithms of ratios, turn by turn; none if the two were not timed in turns."""
    x, y = repeated_seconds(one), repeated_seconds(other)
    if len(x) != len(y):
        return []
    return [math.log(b / a) for a, b in zip(x, y, strict=True) if a > 0 and b > 0]


def runs_by_seed(records: Records) -> dict[int, Record]:
    """Those that were timed."""
    return {r["config"]["seed"]: r for r in records if step_seconds(r)}


def as_ratio(found: Interval) -> str:
    """A logarithm as a ratio, in words; alone if no spread is seen in its digits."""
    middle = plain(math.exp(found.middle), 3)
    if not math.isfinite(found.half):
        return f"{middle} (one measurement)"
    low, high = (plain(math.exp(end), 3) for end in (found.low, found.high))
    return middle if low == middle == high else f"{middle} ({low} to {high})"


def widths_of(records: Records, *methods: str) -> list[int]:
    """The widths at which all of the methods were timed."""
    sets = [{r["config"]["width"] for r in where(records, method=m) if step_seconds(r)} for m in methods]
    return sorted(set.intersection(*sets)) if sets else []


def faster(first: str, second: str, factor: float = FASTER, *, least: int = 0, most: float = math.inf) -> Check:
    """At the largest width, the first method needs less time for a step than the second, by at least a twentieth.

    Widths below ``least`` and above ``most`` do not count: the statement is not about them.
    """

    def check(records: Records) -> Finding:
        chosen = timed(records)
        widths = [width for width in widths_of(chosen, first, second) if least <= width <= most]
        found = log_ratio(where(chosen, width=widths[-1]), first, second) if widths else None
        if found is None:
            return UNKNOWN
        words = f"{second} takes {as_ratio(found)} times as long as {first} at width {widths[-1]}"
        return Finding(above(found, math.log(factor)), words)

    return check


def similar_times(methods: tuple[str, ...], factor: float) -> Check:
    """At the smallest width, if it is small, the methods' times differ from the first one's by at most a factor."""

    def check(records: Records) -> Finding:
        chosen = timed(records)
        widths = widths_of(chosen, *methods)
        if not widths or widths[0] > SMALL:
            return UNKNOWN
        here = where(chosen, width=widths[0])
        verdicts, words = [], []
        for other in methods[1:]:
            found = log_ratio(here, methods[0], other)
            if found is not None:
                verdicts.append(within(found, -math.log(factor), math.log(factor)))
                words.append(f"{other} {as_ratio(found)}")
        if not verdicts:
            return UNKNOWN
        return Finding(all_of(verdicts), f"over {methods[0]}’s time at width {widths[0]}: {', '.join(words)}")

    return check


def growth(first: str, second: str, *, least: int = LARGE, factor: float = FASTER) -> Check:
    """The first method's time grows less with the width than the second's, from the smallest to the largest width.

    The ratio of the times grows by the ``factor`` or more, and the largest width must be ``least`` or more.
    """

    def check(records: Records) -> Finding:
        chosen = timed(records)
        widths = widths_of(chosen, first, second)
        if len(widths) < 2 or widths[-1] < least:
            return UNKNOWN
        low, high = (log_ratio(where(chosen, width=w), first, second) for w in (widths[0], widths[-1]))
        if low is None or high is None:
            return UNKNOWN
        words = f"{second} over {first}: {as_ratio(low)} at width {widths[0]}, {as_ratio(high)} at width {widths[-1]}"
        return Finding(above(high - low, math.log(factor)), words)

    return check


def grows_more(first: str, second: str, *, least: int = LARGE) -> Check:
    """From the smallest to the largest width, a step of the first method becomes longer by more seconds."""

    def check(records: Records) -> Finding:
        chosen = timed(records)
        widths = widths_of(chosen, first, second)
        if len(widths) < 2 or widths[-1] < least:
            return UNKNOWN
        longer = {}
        for method in (first, second):
            small, large = (_seconds(where(chosen, width=w, method=method)) for w in (widths[0], widths[-1]))
            longer[method] = large - small
        words = " and ".join(f"{method} by {ranged(found)} s" for method, found in longer.items())
        words = f"from width {widths[0]} to {widths[-1]} a step becomes longer: {words}"
        return Finding(above(longer[first] - longer[second], 0.0), words)

    return check


def _seconds(records: Records) -> Interval:
    """Seconds of a step: of the clock over its turns, of training over seeds."""
    turns = [seconds for record in records for seconds in repeated_seconds(record)]
    return interval(turns or [seconds for record in records if (seconds := step_seconds(record))])


def shrinks(first: str, second: str, batches: tuple[int, int], *, least: int = 0) -> Check:
    """The first method's advantage over the second is smaller with the larger batch, at the largest width of both.

    Without an advantage with the smaller batch, or at a width below ``least``, the numbers are shown and do not agree.
    """

    def check(records: Records) -> Finding:
        small, large = (where(timed(records), batch=batch) for batch in batches)
        widths = sorted(set(widths_of(small, first, second)) & set(widths_of(large, first, second)))
        if not widths:
            return UNKNOWN
        before, after = (log_ratio(where(part, width=widths[-1]), first, second) for part in (small, large))
        if before is None or after is None:
            return UNKNOWN
        ratios = f"{as_ratio(before)} with a batch of {batches[0]}, {as_ratio(after)} with {batches[1]}"
        words = f"{second} over {first} with {widths[-1]} channels: {ratios}"
        verdict = above(before - after, math.log(FASTER))
        if widths[-1] < least or above(before, 0.0) is not Verdict.AGREES:
            verdict = Verdict.UNDECIDED
        return Finding(verdict, words)

    return check


def faster_on_the_whole(first: str, second: str) -> Check:
    """On average over the widths, the first method needs less time for a step than the second."""

    def check(records: Records) -> Finding:
        chosen = timed(records)
        widths = widths_of(chosen, first, second)
        every = [log_ratio(where(chosen, width=width), first, second) for width in widths]
        found = [ratio for ratio in every if ratio is not None]
        if not found:
            return UNKNOWN
        half = math.hypot(*(ratio.half for ratio in found)) / len(found)
        whole = Interval(statistics.fmean(ratio.middle for ratio in found), half)
        ends = f"from {widths[0]} to {widths[-1]}" if len(widths) > 1 else f"of {widths[0]}"
        words = f"{second} takes {as_ratio(whole)} times as long as {first}, on average over {len(found)} widths {ends}"
        return Finding(above(whole, 0.0), words)

    return check


def keeps_time(methods: tuple[str, ...], factor: float) -> Check:
    """From the smallest to the largest width that were timed in turns, a step becomes longer by less than a factor."""

    def check(records: Records) -> Finding:
        verdicts, words = [], []
        for method in methods:
            mine = sorted(where(of_study(records, CLOCK), method=method), key=lambda r: r["config"]["width"])
            if len(mine) < 2:
                continue
            ends = [[math.log(s) for s in repeated_seconds(mine[k])] for k in (0, -1)]
            found = difference(ends[1], ends[0])
            widths = [mine[k]["config"]["width"] for k in (0, -1)]
            verdicts.append(below(found, math.log(factor)))
            words.append(f"{method} takes {as_ratio(found)} times as long at width {widths[1]} as at {widths[0]}")
        return Finding(all_of(verdicts), "; ".join(words)) if verdicts else UNKNOWN

    return check


def linear_growth(methods: tuple[str, ...], low: float, high: float) -> Check:
    """At large widths, time grows with a power of the number of parameters between ``low`` and ``high``."""

    def check(records: Records) -> Finding:
        chosen = [r for r in of_study(records, CLOCK) if r["config"]["width"] >= LARGE]
        verdicts, words = [], []
        for method in methods:
            mine = sorted(where(chosen, method=method), key=lambda r: r["config"]["width"])
            slopes = _slopes(mine)
            if slopes:
                verdicts.append(within(interval(slopes), low, high))
                ends = f"from width {mine[0]['config']['width']} to {mine[-1]['config']['width']}"
                words.append(f"{method}: power {ranged(interval(slopes))} {ends}")
        if not verdicts:
            return UNKNOWN
        return Finding(all_of(verdicts), "; ".join(words))

    return check


def _slopes(records: Records) -> list[float]:
    """Slopes of the logarithm of time over that of the parameters, one for each turn."""
    sizes = [value(r, "parameters") for r in records]
    times = [repeated_seconds(r) for r in records]
    if len(records) < 2 or not all(sizes) or not all(times):
        return []
    logs = [math.log(size) for size in sizes if size]
    return [
        statistics.linear_regression(logs, [math.log(max(t, 1e-12)) for t in turn]).slope
        for turn in zip(*times, strict=False)
    ]
