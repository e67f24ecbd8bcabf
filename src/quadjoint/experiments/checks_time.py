"""Statements about time, checked: on the clock's steps in turns where it has run, else on the times of trained runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from quadjoint.experiments.records import (
    CLOCK,
    Record,
    Records,
    of_study,
    repeated_seconds,
    step_seconds,
    value,
    where,
)
from quadjoint.experiments.verdicts import (
    UNKNOWN,
    Finding,
    Interval,
    Verdict,
    above,
    all_of,
    difference,
    interval,
    plain,
    ranged,
    within,
)

Check = Callable[[Records], Finding]
FASTER = 1.05  # a twentieth less time, or it is not called faster
LARGE = 500  # widths from which a model is called large


def timed(records: Records) -> Records:
    """What times are taken from: the clock's lines if there are any, else training."""
    return of_study(records, CLOCK) or of_study(records, "widths", "time", "batch")


def log_ratio(records: Records, first: str, second: str) -> Interval | None:
    """The logarithm of the second method's time over the first's, at one width.

    Of the clock, turn by turn; of training, seed by seed, and of a single seed over its epochs.
    """
    pairs = []
    a, b = (_by_seed(where(records, method=method)) for method in (first, second))
    if not a or not b:
        return None
    for seed in sorted(set(a) & set(b)):
        one, other = repeated_seconds(a[seed]), repeated_seconds(b[seed])
        if a[seed]["config"].get("study") == CLOCK and len(one) == len(other):
            pairs += [math.log(y / x) for x, y in zip(one, other, strict=True) if x > 0 and y > 0]
    if pairs:
        return interval(pairs)
    common = sorted(set(a) & set(b))
    steps = [(step_seconds(a[seed]), step_seconds(b[seed])) for seed in common]
    logs = [math.log(y / x) for x, y in steps if x and y]
    if len(logs) > 1:
        return interval(logs)
    if not logs:
        return None
    one, other = ([math.log(x) for x in repeated_seconds(runs[common[0]]) if x > 0] for runs in (b, a))
    noise = difference(one, other).half if one and other else math.inf
    return Interval(logs[0], noise)


def _by_seed(records: Records) -> dict[int, Record]:
    return {r["config"]["seed"]: r for r in records if step_seconds(r)}


def as_ratio(found: Interval) -> str:
    """A logarithm as a ratio, in words."""
    if not math.isfinite(found.half):
        return f"{plain(math.exp(found.middle), 3)} (one measurement)"
    low, high = math.exp(found.low), math.exp(found.high)
    return f"{plain(math.exp(found.middle), 3)} ({plain(low, 3)} to {plain(high, 3)})"


def widths_of(records: Records, *methods: str) -> list[int]:
    """The widths at which all of the methods were timed."""
    sets = [{r["config"]["width"] for r in where(records, method=m) if step_seconds(r)} for m in methods]
    return sorted(set.intersection(*sets)) if sets else []


def faster(first: str, second: str, factor: float = FASTER) -> Check:
    """At the largest width, the first method needs less time for a step than the second, by at least a twentieth."""

    def check(records: Records) -> Finding:
        chosen = timed(records)
        widths = widths_of(chosen, first, second)
        found = log_ratio(where(chosen, width=widths[-1]), first, second) if widths else None
        if found is None:
            return UNKNOWN
        words = f"{second} takes {as_ratio(found)} times as long as {first} at width {widths[-1]}"
        return Finding(above(found, math.log(factor)), words)

    return check


def similar_times(methods: tuple[str, ...], factor: float) -> Check:
    """At the smallest width, the methods' times differ from the first one's by at most a factor."""

    def check(records: Records) -> Finding:
        chosen = timed(records)
        widths = widths_of(chosen, *methods)
        if not widths:
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


def growth(first: str, second: str) -> Check:
    """The first method's time grows less with the width than the second's, from the smallest to the largest width."""

    def check(records: Records) -> Finding:
        chosen = timed(records)
        widths = widths_of(chosen, first, second)
        if len(widths) < 2:
            return UNKNOWN
        low, high = (log_ratio(where(chosen, width=w), first, second) for w in (widths[0], widths[-1]))
        if low is None or high is None:
            return UNKNOWN
        words = f"{second} over {first}: {as_ratio(low)} at width {widths[0]}, {as_ratio(high)} at width {widths[-1]}"
        return Finding(above(high - low, math.log(FASTER)), words)

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


def sooner(first: str, second: str, curve: str) -> Check:
    """At the largest trained width, the first method's loss reaches a level before the second's, in time.

    The level is the lowest that both reach; of each seed by itself. With a single seed, other methods of which there
    are several tell how much the time to this level differs from seed to seed.
    """

    def check(records: Records) -> Finding:
        trained = of_study(records, "widths")
        widths = widths_of(trained, first, second)
        if not widths:
            return UNKNOWN
        width = widths[-1]
        here = where(trained, width=width)
        one, other = (_by_seed(where(here, method=m)) for m in (first, second))
        pairs = [(one[seed], other[seed]) for seed in sorted(set(one) & set(other))]
        logs = [math.log(times[1] / times[0]) for pair in pairs if (times := _times_to_level(*pair, curve))]
        if not logs:
            return UNKNOWN
        found = interval(logs) if len(logs) > 1 else Interval(logs[0], _noise_to_level(here, pairs, curve))
        verdict = above(found, math.log(FASTER))
        if verdict is Verdict.DISAGREES and width < LARGE:
            verdict = Verdict.UNDECIDED
        words = f"to the same loss, {second} takes {as_ratio(found)} times as long as {first} (width {width})"
        return Finding(verdict, words)

    return check


def _times_to_level(one: Record, other: Record, curve: str) -> tuple[float, float] | None:
    level = _common_level((one, other), curve)
    first, second = (_time_to(level, record, curve) for record in (one, other))
    return (first, second) if first and second else None


def _common_level(records: Sequence[Record], curve: str) -> float:
    """The lowest loss that all of them reach."""
    return max(min(record["result"]["curves"][curve], default=math.nan) for record in records)


def _time_to(level: float, record: Record, curve: str) -> float | None:
    """Seconds until the loss is at the level; None if it never is, or if the curve is no curve."""
    losses, seconds = record["result"]["curves"][curve], repeated_seconds(record)
    if not losses or len(losses) != len(seconds) or not all(math.isfinite(x) for x in losses):
        return None
    place = next((k for k, loss in enumerate(losses) if loss <= level), None)
    return None if place is None else sum(seconds[: place + 1])


def _noise_to_level(records: Records, pairs: list[tuple[Record, Record]], curve: str) -> float:
    """Half of the interval of a logarithm of two single runs' times, by the spread of those methods that have seeds."""
    level = next(_common_level(pair, curve) for pair in pairs if _times_to_level(*pair, curve))
    groups = []
    for method in {r["config"]["method"] for r in records}:
        times = [_time_to(level, r, curve) for r in where(records, method=method)]
        groups.append([math.log(time) for time in times if time])
    return difference([0.0], [0.0], groups).half


def irregular_cost(first: str, second: str, method: str, limit: float) -> Check:
    """One spacing of times costs more than another, by at least the factor ``limit``, with 10 and with 50 times."""

    def check(records: Records) -> Finding:
        verdicts, words = [], []
        for times in (10, 50):
            here = where(of_study(records, "regularity"), times=times, method=method)
            # As if the spacing were the method: the same pairing by seed, the same noise.
            renamed = [r | {"config": r["config"] | {"method": r["config"]["spacing"]}} for r in here]
            found = log_ratio(renamed, first, second)
            if found is not None:
                verdicts.append(above(found, math.log(limit)))
                words.append(f"{times} times: {as_ratio(found)}")
        if not verdicts:
            return UNKNOWN
        return Finding(all_of(verdicts), f"{method}, {second} over {first}, {'; '.join(words)}")

    return check
