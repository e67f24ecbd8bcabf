"""Statements about what was learnt, checked: metrics after training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from quadjoint.experiments.records import WIDTHS, Records, by, methods_of, of_study, value, where
from quadjoint.experiments.verdicts import (
    THEIRS,
    UNKNOWN,
    Check,
    Finding,
    Interval,
    Verdict,
    all_of,
    below,
    difference,
    interval,
    ranged,
    spread,
    within,
)

GRAVITY = (Verdict.MISSING, Verdict.AGREES, Verdict.UNDECIDED, Verdict.DISAGREES)


@dataclass(frozen=True)
class Margin:
    """How far apart numbers may be that are called the same."""

    absolute: float = 0.0
    relative: float = 0.0
    deviation: bool = False  # a standard deviation over seeds, of either method, is allowed as well

    def between(self, wanted: Sequence[float], other: Sequence[float]) -> float:
        deviations = [statistics.stdev(group) for group in (wanted, other) if self.deviation and len(group) > 1]
        return max(self.absolute, self.relative * abs(statistics.fmean(wanted)), *deviations)


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


def same(metric: str, methods: tuple[str, ...], margin: Margin, *, most: float = math.inf) -> Check:
    """After training, metrics differ from that of the paper's method by less than the margin, up to the width ``most``.

    If methods have one seed, the spread is that of all methods at this width, also of those not compared. Without a run
    of the paper's method a width says nothing; without one of another method it does not agree.
    """

    def check(records: Records) -> Finding:
        verdicts, worst, words = [], (-1, 0.0), ""
        for (width,), here in by(_narrow(records, most), "width").items():
            every = {m: by_seed(where(here, method=m), "final", metric) for m in (*methods, *methods_of(here))}
            if not every[THEIRS]:
                continue
            for method in methods:
                if method == THEIRS:
                    continue
                if not every[method]:
                    verdict, rank, said = Verdict.UNDECIDED, 0.0, f"no run of {method}"
                else:
                    allowed = margin.between(*(list(every[m].values()) for m in (THEIRS, method)))
                    off = gap(every[THEIRS], every[method], [every[m] for m in every if m not in (THEIRS, method)])
                    verdict, rank = within(off, -allowed, allowed), abs(off.middle) / allowed
                    pair = ", ".join(f"{m} {spread(list(every[m].values()))}" for m in (THEIRS, method))
                    said = f"{pair}, apart by {ranged(off)}"
                verdicts.append(verdict)
                if (GRAVITY.index(verdict), rank) > worst:  # the pair that decides
                    worst, words = (GRAVITY.index(verdict), rank), f"at width {width}: {said}"
        return Finding(all_of(verdicts), words) if verdicts else UNKNOWN

    return check


def _narrow(records: Records, most: float) -> Records:
    return [r for r in of_study(records, WIDTHS) if r["config"]["width"] <= most]


def low(metric: str, methods: tuple[str, ...], limit: float, *, most: float = math.inf) -> Check:
    """After training, the mean of the metric is below the limit, for every method and every width up to ``most``."""

    def check(records: Records) -> Finding:
        cells = by([r for r in _narrow(records, most) if r["config"]["method"] in methods], "width", "method")
        means = {cell: interval(by_seed(group, "final", metric).values()) for cell, group in cells.items()}
        if not means:
            return UNKNOWN
        width, method = max(means, key=lambda cell: means[cell].high)
        words = f"the largest: {method} at width {width}, {ranged(means[width, method])}"
        return Finding(all_of(below(found, limit) for found in means.values()), words)

    return check
