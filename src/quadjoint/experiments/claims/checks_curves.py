"""Statements about curves of a loss, checked: over the epochs and over time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from quadjoint.experiments.claims.checks_time import FASTER, LARGE, as_ratio, log_ratio, runs_by_seed, widths_of
from quadjoint.experiments.records import (
    CLOCK,
    WIDTHS,
    Record,
    Records,
    by,
    by_size,
    epoch_seconds,
    methods_of,
    of_study,
    where,
)
from quadjoint.experiments.verdicts import (
    THEIRS,
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
    student,
)

Curves = dict[int, list[float]]


def matching_curves(curve: str, methods: tuple[str, ...], part: float) -> Check:
    """At the largest trained width, the curves of the methods are, on average over the epochs, less than a part of the
    first value away from that of the paper's method."""

    def check(records: Records) -> Finding:
        trained = of_study(records, WIDTHS)
        known = [r for r in trained if r["config"]["method"] in methods]
        width = max((r["config"]["width"] for r in known), default=None)
        here = where(trained, width=width)
        every = {
            m: {r["config"]["seed"]: r["result"]["curves"][curve] for r in where(here, method=m)}
            for m in dict.fromkeys((*methods, *methods_of(here)))
        }
        if not every[THEIRS] or not any(every[m] for m in methods if m != THEIRS):
            return UNKNOWN
        verdicts, words = [], []
        for method in methods:
            if method == THEIRS:
                continue
            if every[method]:
                away = _distance(every[THEIRS], every[method], list(every.values()))
                verdicts.append(below(away, part))
                words.append(f"{method} {_percent(away)}")
            else:
                verdicts.append(Verdict.UNDECIDED)
                words.append(f"{method} not trained")
        epochs = len(next(iter(every[THEIRS].values())))
        text = f"mean distance from {THEIRS}’s curve over its first value, at width {width}, {epochs} epochs: "
        text += ", ".join(words)
        return Finding(all_of(verdicts), text)

    return check


def _distance(one: Curves, other: Curves, every: list[Curves]) -> Interval:
    """The mean distance of two curves in units of their first value."""
    common = sorted(set(one) & set(other))
    away = [_apart(one[seed], other[seed]) for seed in common]
    if len(away) > 1:
        return interval(away)
    middle = _apart(_mean_curve(one), _mean_curve(other))
    several = [group for group in every if len(group) > 1]
    if not several:
        return Interval(middle, math.inf)
    first = _mean_curve(one)[0]
    noise = [statistics.fmean(map(statistics.stdev, zip(*group.values(), strict=False))) for group in several]
    freedom = max(len(group) - 1 for group in several)
    return Interval(middle, student(freedom) * math.sqrt(2) * statistics.fmean(noise) / abs(first))


def _apart(one: list[float], other: list[float]) -> float:
    if not one or not other or not max(one[0], other[0]) > 0:
        return math.nan
    return statistics.fmean(abs(a - b) for a, b in zip(one, other, strict=False)) / max(one[0], other[0])


def _mean_curve(curves: Curves) -> list[float]:
    return [statistics.fmean(values) for values in zip(*curves.values(), strict=False)]


def _percent(found: Interval) -> str:
    """With the interval if it is wide: then that decides."""
    if found.middle < found.half < math.inf:
        return f"{plain(100 * found.middle)} % (up to {plain(100 * found.high)} %)"
    return f"{plain(100 * found.middle)} %"


def sooner(first: str, second: str, curve: str, *, least: int = LARGE) -> Check:
    """At the largest trained width, the first method's loss reaches a level before the second's, in time.

    The level is a tenth of the first loss, or the lowest that both reach; of each seed by itself. Steps take as long as
    the clock says, if it has run, and are as uncertain as its turns. With a single seed, other methods of which there
    are several tell how much the time to this level differs from seed to seed. The statement is about large models:
    below the width ``least``, the numbers are shown and decide nothing.
    """

    def check(records: Records) -> Finding:
        trained = of_study(records, WIDTHS)
        widths = widths_of(trained, first, second)
        if not widths:
            return UNKNOWN
        width = widths[-1]
        here = where(trained, width=width)
        one, other = (runs_by_seed(where(here, method=m)) for m in (first, second))
        pairs = [[one[seed], other[seed]] for seed in sorted(set(one) & set(other))]
        levels = [_common_level(pair, curve) for pair in pairs]
        logs = []
        for pair, level in zip(pairs, levels, strict=True):
            times = _times_to(level, pair, epoch_seconds(records, pair), curve)
            if len(times) == len(pair):
                logs.append(math.log(times[1] / times[0]))
        if not logs:
            return UNKNOWN
        found = interval(logs) if len(logs) > 1 else Interval(logs[0], _noise_to_level(here, levels[0], curve))
        found = Interval(found.middle, math.hypot(found.half, _noise_of_the_clock(records, pairs[0][0], first, second)))
        words = f"to the same loss, {second} takes {as_ratio(found)} times as long as {first} at width {width}"
        if width < least:
            return Finding(Verdict.UNDECIDED, f"{words}, which is no large model")
        return Finding(above(found, math.log(FASTER)), words)

    return check


def _noise_of_the_clock(records: Records, run: Record, first: str, second: str) -> float:
    """Half of the interval of the logarithm of two methods' paces by the clock, which all seeds share.

    Zero if the clock has not timed both at the size of the run: epochs take what was recorded with each seed.
    """
    (size,) = by_size([run])
    turns = log_ratio(by_size(of_study(records, CLOCK)).get(size, []), first, second)
    return turns.half if turns else 0.0


def _common_level(runs: Sequence[Record], curve: str) -> float:
    """A tenth of the first loss, or the lowest that all of them reach: how low chance lets a run end is no speed."""
    curves = [run["result"]["curves"][curve] for run in runs]
    return max(max(min(losses, default=math.nan), losses[0] / 10 if losses else math.nan) for losses in curves)


def _times_to(level: float, runs: Sequence[Record], seconds: Sequence[Sequence[float]], curve: str) -> list[float]:
    """Seconds until the loss is at the level, of those runs in which it is, and whose curve is one."""
    times = []
    for run, spent in zip(runs, seconds, strict=True):
        losses = run["result"]["curves"][curve]
        place = next((k for k, loss in enumerate(losses) if loss <= level), None)
        if place is not None and len(losses) == len(spent) and all(math.isfinite(x) for x in losses):
            times.append(sum(spent[: place + 1]))
    return times


def _noise_to_level(runs: Records, level: float, curve: str) -> float:
    """Half of the interval of a logarithm of two single runs' times, by the spread of those methods that have seeds."""
    groups = []
    for group in by(runs, "method").values():
        epochs = [[1.0] * len(run["result"]["curves"][curve]) for run in group]  # a method's epochs take alike
        groups.append([math.log(time) for time in _times_to(level, group, epochs, curve)])
    return difference([0.0], [0.0], groups).half
