"""Statements about what was learnt, checked: final metrics, curves, ablations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quadjoint.experiments.records import Records, by, methods_of, of_study, step_seconds, value, where
from quadjoint.experiments.verdicts import (
    THEIRS,
    UNKNOWN,
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
    short,
    spread,
    within,
)

Check = Callable[[Records], Finding]
GRAVITY = (Verdict.MISSING, Verdict.AGREES, Verdict.UNDECIDED, Verdict.DISAGREES)


@dataclass(frozen=True)
class Margin:
    """How far apart numbers may be that are called the same."""

    absolute: float = 0.0
    relative: float = 0.0

    def at(self, level: float) -> float:
        return max(self.absolute, self.relative * abs(level))


def by_seed(records: Records, *path: str) -> dict[int, float]:
    """A number of the result by seed."""
    found = {r["config"]["seed"]: value(r, *path) for r in records}
    return {seed: number for seed, number in found.items() if number is not None}


def gap(one: dict[int, float], other: dict[int, float], further: Sequence[dict[int, float]] = ()) -> Interval:
    """The difference of two methods' means: over pairs of common seeds if there are two, else by pooled spreads.

    ``further`` are groups of other methods, which tell of the spread.
    """
    common = sorted(set(one) & set(other))
    if len(common) > 1:
        return interval(other[seed] - one[seed] for seed in common)
    return difference(list(other.values()), list(one.values()), [list(group.values()) for group in further])


def same(metric: str, methods: tuple[str, ...], margin: Margin) -> Check:
    """After training, metrics differ from that of the paper's method by less than the margin, at every width.

    If methods have one seed, the spread is that of all methods at this width, also of those not compared. Without a run
    of the paper's method a width says nothing; without one of another method it does not agree.
    """

    def check(records: Records) -> Finding:
        verdicts, worst, words = [], (-1, 0.0), ""
        for (width,), here in by(of_study(records, "widths"), "width").items():
            every = {m: by_seed(where(here, method=m), "final", metric) for m in (*methods, *methods_of(here))}
            if not every[THEIRS]:
                continue
            allowed = margin.at(statistics.fmean(every[THEIRS].values()))
            for method in methods:
                if method == THEIRS:
                    continue
                if not every[method]:
                    verdict, rank, said = Verdict.UNDECIDED, 0.0, f"no run of {method}"
                else:
                    off = gap(every[THEIRS], every[method], [every[m] for m in every if m not in (THEIRS, method)])
                    verdict, rank = within(off, -allowed, allowed), abs(off.middle) / allowed
                    pair = ", ".join(f"{m} {spread(list(every[m].values()))}" for m in (THEIRS, method))
                    said = f"{pair}, apart by {ranged(off)}"
                verdicts.append(verdict)
                if (GRAVITY.index(verdict), rank) > worst:  # the pair that decides
                    worst, words = (GRAVITY.index(verdict), rank), f"at width {width}: {said}"
        return Finding(all_of(verdicts), words) if verdicts else UNKNOWN

    return check


def low(metric: str, methods: tuple[str, ...], limit: float) -> Check:
    """After training, the mean of the metric is below the limit, for every method and width."""

    def check(records: Records) -> Finding:
        cells = by([r for r in of_study(records, "widths") if r["config"]["method"] in methods], "width", "method")
        means = {cell: interval(by_seed(group, "final", metric).values()) for cell, group in cells.items()}
        if not means:
            return UNKNOWN
        width, method = max(means, key=lambda cell: means[cell].high)
        words = f"the largest: {method} at width {width}, {ranged(means[width, method])}"
        return Finding(all_of(below(found, limit) for found in means.values()), words)

    return check


# Ablations ------------------------------------------------------------------------------------------------


def change(
    study: str, field: str, ends: tuple[float, float], path: tuple[str, ...], method: str, *, ratio: bool
) -> Callable[[Records], Interval | None]:
    """How much a number changes from one setting of an ablation to another: difference, or logarithm of the ratio."""

    def measure(records: Records) -> Interval | None:
        mine = where(of_study(records, study), method=method)
        found = [_numbers(where(mine, **{field: end}), path) for end in ends]
        if not found[0] or not found[1]:
            return None
        if ratio:
            found = [{seed: math.log(x) for seed, x in group.items() if x > 0} for group in found]
        return gap(found[0], found[1])

    return measure


def _numbers(records: Records, path: tuple[str, ...]) -> dict[int, float]:
    if path != ("step",):
        return by_seed(records, *path)
    found = {r["config"]["seed"]: step_seconds(r) for r in records}
    return {seed: seconds for seed, seconds in found.items() if seconds}


def rises(
    study: str,
    field: str,
    ends: tuple[float, float],
    path: tuple[str, ...],
    method: str,
    *,
    ratio: bool = True,
    by_least: float = 0.05,
) -> Check:
    """From the first end to the second, the number rises by at least so much (a part of itself if a ratio)."""
    measure = change(study, field, ends, path, method, ratio=ratio)

    def check(records: Records) -> Finding:
        found = measure(records)
        if found is None:
            return UNKNOWN
        limit = math.log1p(by_least) if ratio else by_least
        return Finding(above(found, limit), _ends(records, study, field, method, path))

    return check


def stays(
    study: str, field: str, ends: tuple[float, float], path: tuple[str, ...], method: str, *, margin: float, ratio: bool
) -> Check:
    """From the first end to the second, the number changes by less than the margin (a part of itself if a ratio)."""
    measure = change(study, field, ends, path, method, ratio=ratio)

    def check(records: Records) -> Finding:
        found = measure(records)
        if found is None:
            return UNKNOWN
        limit = math.log1p(margin) if ratio else margin
        return Finding(within(found, -limit, limit), _ends(records, study, field, method, path, ends))

    return check


def _ends(
    records: Records,
    study: str,
    field: str,
    method: str,
    path: tuple[str, ...],
    only: tuple[float, ...] | None = None,
) -> str:
    """The means at every setting, in words."""
    mine = by(where(of_study(records, study), method=method), field)
    shown = {s[0]: list(_numbers(group, path).values()) for s, group in mine.items() if only is None or s[0] in only}
    scale, unit = (1000.0, " ms") if path == ("step",) else (1.0, "")
    cells = [f"{short(s)}: {spread([scale * x for x in numbers])}{unit}" for s, numbers in shown.items() if numbers]
    return f"{method}, by {'C' if field == 'c' else field}: {', '.join(cells)}"


def pays_little(study: str, field: str, ends: tuple[float, float], metric: str, method: str) -> Check:
    """Between the two settings the metric falls by a smaller factor than the time rises."""
    lower = change(study, field, (ends[1], ends[0]), ("final", metric), method, ratio=True)
    longer = change(study, field, ends, ("step",), method, ratio=True)

    def check(records: Records) -> Finding:
        gain, cost = lower(records), longer(records)
        if gain is None or cost is None:
            return UNKNOWN
        factors = [plain(math.exp(found.middle), 3) for found in (gain, cost)]
        name = metric.removeprefix("test_").upper()
        words = f"{method}, {field} from {ends[0]:g} to {ends[1]:g}: {name} smaller by a factor of {factors[0]}, "
        return Finding(above(cost - gain, 0.0), f"{words}time longer by {factors[1]}")

    return check


def like_regular(method: str, epochs: int, *, lower: bool = False) -> Check:
    """Trained on irregular times, the error is that of regular ones: within the sum of the deviations over seeds.

    With ``lower``, that it is smaller. Runs that were not trained for so many epochs do not count.
    """

    def check(records: Records) -> Finding:
        verdicts, words = [], []
        for times in (10, 50):
            mine = where(of_study(records, "regularity"), times=times, method=method)
            mine = [r for r in mine if r["config"].get("epochs", 0) >= epochs]
            regular, irregular = (
                list(by_seed(where(mine, spacing=s), "final", "test_mse").values()) for s in ("regular", "merged")
            )
            if not regular or not irregular:
                continue
            off = difference(irregular, regular)
            allowed = sum(statistics.stdev(group) if len(group) > 1 else 0.0 for group in (regular, irregular))
            verdicts.append(below(off, 0.0) if lower else within(off, -allowed, allowed))
            words.append(f"{times} times: regular {spread(regular)}, irregular {spread(irregular)}")
        return Finding(all_of(verdicts), f"{method}, MSE with {'; with '.join(words)}") if verdicts else UNKNOWN

    return check
