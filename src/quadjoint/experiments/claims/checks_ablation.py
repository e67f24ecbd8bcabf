"""Statements about ablations, checked: how times and metrics change from one setting to another."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

from quadjoint.experiments.claims.checks_time import as_ratio, time_ratio
from quadjoint.experiments.claims.checks_training import by_seed, gap
from quadjoint.experiments.records import Records, by, of_study, step_seconds, timed_study, where, widest
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
    plain,
    ranged,
    short,
    spread,
    within,
)

STEP = ("step",)  # stands for the time of a step where a path into the result is expected


@dataclass(frozen=True)
class Series:
    """A number of one method over the settings of a field that an ablation varies."""

    study: str
    field: str
    path: tuple[str, ...]  # into the result, or `STEP`
    method: str

    def runs(self, records: Records, **settings: Any) -> Records:
        """Where the number is read: times on the clock's lines if there are any."""
        study = timed_study(records, self.study) if self.path == STEP else of_study(records, self.study)
        return where(widest(study), method=self.method, **settings)

    def at(self, records: Records, setting: Any) -> Records:
        return self.runs(records, **{self.field: setting})

    def words(self, records: Records) -> str:
        """The means at every setting."""
        scale, unit = (1000.0, " ms") if self.path == STEP else (1.0, "")
        cells = []
        for (setting,), group in by(self.runs(records), self.field).items():
            found = [step_seconds(r) for r in group] if self.path == STEP else by_seed(group, *self.path).values()
            if numbers := [scale * x for x in found if x is not None]:
                cells.append(f"{_name(setting)}: {spread(numbers)}{unit}")
        return f"{self.method}, by {'C' if self.field == 'c' else self.field}: {', '.join(cells)}"


def _name(setting: Any) -> str:
    return short(setting) if isinstance(setting, int | float) else str(setting)


def change(series: Series, ends: tuple[Any, Any], records: Records, *, ratio: bool) -> Interval | None:
    """How much the number changes from one setting to another: difference, or logarithm of the ratio."""
    one, other = (series.at(records, end) for end in ends)
    if series.path == STEP:
        return time_ratio(one, other, list(by(series.runs(records), series.field).values()))
    found = [by_seed(group, *series.path) for group in (one, other)]
    if not found[0] or not found[1]:
        return None
    if ratio:
        found = [{seed: math.log(x) for seed, x in group.items() if x > 0} for group in found]
    return gap(found[0], found[1])


def rises(series: Series, ends: tuple[Any, Any], *, ratio: bool = True, by_least: float = 0.05) -> Check:
    """From the first end to the second, the number rises by at least so much (a part of itself if a ratio)."""
    low = math.log1p(by_least) if ratio else by_least
    return _changes(series, ends, ratio=ratio, low=low, high=math.inf)


def stays(series: Series, ends: tuple[Any, Any], *, margin: float, ratio: bool) -> Check:
    """From the first end to the second, the number changes by less than the margin (a part of itself if a ratio)."""
    high = math.log1p(margin) if ratio else margin
    return _changes(series, ends, ratio=ratio, low=-high, high=high)


def _changes(series: Series, ends: tuple[Any, Any], *, ratio: bool, low: float, high: float) -> Check:
    def check(records: Records) -> Finding:
        found = change(series, ends, records, ratio=ratio)
        return UNKNOWN if found is None else Finding(within(found, low, high), series.words(records))

    return check


def reaches(series: Series, settings: tuple[Any, ...], *, level: float) -> Check:
    """At these settings the number is at the level; it is a count, without noise."""

    def check(records: Records) -> Finding:
        groups = [list(by_seed(series.at(records, setting), *series.path).values()) for setting in settings]
        if not all(groups):
            return UNKNOWN
        verdicts = [within(Interval(number), level - 0.5, level + 0.5) for group in groups for number in group]
        return Finding(all_of(verdicts), series.words(records))

    return check


def pays_little(series: Series, ends: tuple[Any, Any], *, falls: bool = False) -> Check:
    """Between the two settings the metric falls by a smaller factor than the time of the paper's method rises.

    If the statement is that it ``falls`` by little, it is open without a fall.
    """
    time = replace(series, path=STEP, method=THEIRS)

    def check(records: Records) -> Finding:
        gain, cost = change(series, ends[::-1], records, ratio=True), change(time, ends, records, ratio=True)
        if gain is None or cost is None:
            return UNKNOWN
        name = series.path[-1].removeprefix("test_").upper()
        words = f"{series.field} from {_name(ends[0])} to {_name(ends[1])}: {name} of {series.method} "
        words += f"{'smaller' if gain.middle >= 0 else 'larger'} by a factor of {_factor(abs(gain.middle))} (geometric "
        words += f"mean over seeds), a step of {THEIRS} longer by {_factor(cost.middle)}"
        if falls and gain.middle <= 0:
            return Finding(Verdict.UNDECIDED, f"there is no decrease; {words}")
        return Finding(above(cost - gain, 0.0), words)

    return check


def _factor(log: float) -> str:
    return plain(math.exp(log), 3)


def like_regular(method: str, epochs: int, *, lower: bool = False) -> Check:
    """Trained on irregular times, the error is that of regular ones: within the sum of the deviations over seeds.

    With ``lower``, that it is smaller. Runs that were not trained for so many epochs do not count.
    """

    def check(records: Records) -> Finding:
        verdicts, words = [], []
        for times in (10, 50):
            mine = where(widest(of_study(records, "regularity")), times=times, method=method)
            mine = [r for r in mine if r["config"].get("epochs", 0) >= epochs]
            regular, irregular = (by_seed(where(mine, spacing=s), "final", "test_mse") for s in ("regular", "merged"))
            if not regular or not irregular:
                continue
            off = gap(regular, irregular)
            groups = [list(group.values()) for group in (regular, irregular)]
            allowed = sum(statistics.stdev(group) if len(group) > 1 else 0.0 for group in groups)
            verdicts.append(below(off, 0.0) if lower else within(off, -allowed, allowed))
            pair = f"regular {spread(groups[0])}, irregular {spread(groups[1])}"
            words.append(f"{times} times: {pair}, apart by {ranged(off)}")
        return Finding(all_of(verdicts), f"{method}, MSE with {'; with '.join(words)}") if verdicts else UNKNOWN

    return check


def irregular_cost(first: str, second: str, method: str, limit: float) -> Check:
    """One spacing of times costs more than another, by at least the factor ``limit``, with 10 and with 50 times."""

    def check(records: Records) -> Finding:
        verdicts, words = [], []
        study = timed_study(records, "regularity")
        alike = list(by(study, "method", "times", "spacing").values())
        for times in (10, 50):
            here = where(study, times=times, method=method)
            found = time_ratio(where(here, spacing=first), where(here, spacing=second), alike)
            if found is not None:
                verdicts.append(above(found, math.log(limit)))
                words.append(f"{times} times: {as_ratio(found)}")
        if not verdicts:
            return UNKNOWN
        return Finding(all_of(verdicts), f"{method}, {second} over {first}, {'; '.join(words)}")

    return check
