"""Verdicts on statements that know the noise of what was measured.

Every number that a statement is about is a mean with its 95 % confidence interval (Student's t) over seeds, repeated
steps or end times. A statement agrees if it holds over the whole interval, disagrees if it holds nowhere in it, and
otherwise the runs cannot tell.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from quadjoint.experiments.records import Records

THEIRS = "gq-paper"  # the paper's method
RULE = (
    "A statement agrees if it holds over the whole 95 % confidence interval of what was measured (Student’s t over "
    "seeds, one by one where both sides have them, over repeated steps or, for the exponential, over end times; a "
    "method with one seed has the spread of the others), disagrees if it holds nowhere in the interval, and otherwise "
    "these runs cannot tell."
)
# Half of the 95 % interval in standard errors, by degrees of freedom from 1 to 30.
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class Verdict(enum.Enum):
    AGREES = "agrees"
    DISAGREES = "disagrees"
    UNDECIDED = "cannot tell"
    MISSING = "not measured"


@dataclass(frozen=True)
class Finding:
    """A verdict and the numbers that it rests on, in words."""

    verdict: Verdict
    words: str


Check = Callable[[Records], Finding]


@dataclass(frozen=True)
class Claim:
    """A statement, what it is taken to mean, and its check on the records; the paper's, unless it is ours.

    ``about`` are settings of the runs that it is about, such as the data set. If it is about what was ``trained``,
    those of them that gave up belong to it.
    """

    statement: str
    check: Check
    meaning: str = ""
    ours: bool = False
    trained: bool = False
    about: Mapping[str, object] = field(default_factory=dict)


UNKNOWN = Finding(Verdict.MISSING, "no runs here that could tell")


@dataclass(frozen=True)
class Interval:
    """A mean and half of its confidence interval: infinite if nothing is known of the spread, zero of exact counts."""

    middle: float
    half: float = 0.0

    @property
    def low(self) -> float:
        return self.middle - self.half

    @property
    def high(self) -> float:
        return self.middle + self.half

    def __sub__(self, other: Interval) -> Interval:
        """The difference of two that are independent."""
        return Interval(self.middle - other.middle, math.hypot(self.half, other.half))


def student(freedom: int) -> float:
    """Half of the 95 % interval in standard errors.

    >>> student(1), student(4), round(student(1000), 2)
    (12.706, 2.776, 1.96)
    """
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96 + 2.4 / freedom


def interval(numbers: Iterable[float]) -> Interval:
    """The mean of independent repetitions; of a single one the spread is unknown.

    >>> interval([1.0, 3.0]).middle, interval([1.0]).half
    (2.0, inf)
    """
    found = list(numbers)
    if len(found) < 2:
        return Interval(found[0] if found else math.nan, math.inf)
    error = statistics.stdev(found) / math.sqrt(len(found))
    return Interval(statistics.fmean(found), student(len(found) - 1) * error)


def difference(one: Sequence[float], other: Sequence[float], further: Iterable[Sequence[float]] = ()) -> Interval:
    """The difference of two means that are not paired. The spread is taken to be the same for all and is pooled, also
    over ``further`` groups: with a single run of a method, that of the others tells how much runs differ.

    The further groups share seeds, so they are no independent samples of the spread: how well it is known depends on
    the largest of them alone.
    """
    further = list(further)
    several = [group for group in (one, other, *further) if len(group) > 1]
    middle = statistics.fmean(one) - statistics.fmean(other)
    if not several:
        return Interval(middle, math.inf)
    weights = [len(group) - 1 for group in several]
    square = sum(w * statistics.variance(group) for w, group in zip(weights, several, strict=True)) / sum(weights)
    error = math.sqrt(square * (1 / len(one) + 1 / len(other)))
    freedom = max(len(one) + len(other) - 2, *(len(group) - 1 for group in further), 0)
    return Interval(middle, student(freedom) * error)


def above(found: Interval, threshold: float) -> Verdict:
    """Whether the number is above the threshold."""
    return within(found, threshold, math.inf)


def below(found: Interval, threshold: float) -> Verdict:
    return within(found, -math.inf, threshold)


def within(found: Interval, low: float, high: float) -> Verdict:
    """Whether the number lies between the two.

    >>> within(Interval(1.0, 0.1), 0.5, 1.5), within(Interval(1.0, 0.6), 0.5, 1.5), within(Interval(2.0, 0.4), 0.5, 1.5)
    (<Verdict.AGREES: 'agrees'>, <Verdict.UNDECIDED: 'cannot tell'>, <Verdict.DISAGREES: 'disagrees'>)
    """
    if not math.isfinite(found.middle):
        return Verdict.MISSING
    if found.low > low and found.high < high:
        return Verdict.AGREES
    return Verdict.DISAGREES if found.high < low or found.low > high else Verdict.UNDECIDED


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on several statements at once: one that fails decides, then one that is open or not measured.

    >>> all_of([Verdict.AGREES, Verdict.MISSING]), all_of([Verdict.MISSING])
    (<Verdict.UNDECIDED: 'cannot tell'>, <Verdict.MISSING: 'not measured'>)
    """
    found = set(verdicts)
    if not found - {Verdict.MISSING}:
        return Verdict.MISSING
    if Verdict.DISAGREES in found:
        return Verdict.DISAGREES
    return Verdict.AGREES if found == {Verdict.AGREES} else Verdict.UNDECIDED


def negated(verdict: Verdict) -> Verdict:
    """The verdict on the contrary."""
    return {Verdict.AGREES: Verdict.DISAGREES, Verdict.DISAGREES: Verdict.AGREES}.get(verdict, verdict)


def opposite(check: Check) -> Check:
    """The check of the contrary, on the same numbers."""

    def contrary(records: Records) -> Finding:
        finding = check(records)
        return Finding(negated(finding.verdict), finding.words)

    return contrary


def every(*checks: Check) -> Check:
    """All of these at once; the words are those of the check that decides."""

    def check(records: Records) -> Finding:
        found = [one(records) for one in checks]
        verdict = all_of(finding.verdict for finding in found)
        words = next((finding.words for finding in found if finding.verdict is verdict), "not all of it was measured")
        return UNKNOWN if verdict is Verdict.MISSING else Finding(verdict, words)

    return check


def of_large_models(check: Check, study: str, least: int) -> Check:
    """Of a statement about large models: on smaller ones than this the numbers are shown and decide nothing."""

    def guarded(records: Records) -> Finding:
        finding = check(records)
        width = max((r["config"]["width"] for r in records if r["config"].get("study") == study), default=least)
        if width >= least or finding.verdict is Verdict.MISSING:
            return finding
        return Finding(Verdict.UNDECIDED, f"{finding.words}; width {width} is no large model")

    return guarded


def with_seeds(study: str, methods: Sequence[str], make: Callable[[str], Check]) -> Check:
    """The check of the first of these methods that has two seeds or more in the study; else of the first there is."""

    def check(records: Records) -> Finding:
        seeds: dict[str, set[int]] = {}
        for config in (r["config"] for r in records):
            if config.get("study") == study:
                seeds.setdefault(config["method"], set()).add(config["seed"])
        known = sorted((m for m in methods if m in seeds), key=lambda m: len(seeds[m]) < 2)
        return make(known[0])(records) if known else UNKNOWN

    return check


# Numbers as people write them ----------------------------------------------------------------------------


def plain(number: float, digits: int = 2) -> str:
    """So many significant digits, without an exponent where people would write none.

    >>> [plain(x) for x in (0.034, 1.0, 110.4, 12345.6, 0.00012, 2.5e-9)]
    ['0.034', '1.0', '110', '12,000', '0.00012', '2.5e-9']
    """
    if number == 0 or not math.isfinite(number):
        return "0" if number == 0 else str(number)
    mantissa, _, exponent = f"{number:.{digits - 1}e}".partition("e")
    size = int(exponent)
    if size < -4:
        return f"{mantissa}e{size}"
    return f"{round(number, digits - 1 - size):,.{max(0, digits - 1 - size)}f}"


def short(number: float) -> str:
    """A setting or a mark on an axis with the digits it has: 1e-6 rather than 1e-06, 100,000 rather than 1e+05.

    >>> [short(x) for x in (0.1, 1500, 1e5, 2e6, 1e-6, 3e12)]
    ['0.1', '1500', '100,000', '2,000,000', '1e-6', '3e12']
    """
    if 1e4 <= abs(number) < 1e7 and number == round(number):
        return f"{number:,.0f}"
    mantissa, _, exponent = f"{number:g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def ranged(found: Interval, digits: int = 3) -> str:
    """A mean with its interval, alone if there is no spread to speak of; dust of rounding beside the spread is zero.

    >>> ranged(Interval(1.49, 0.06)), ranged(Interval(0.5, 0.0)), ranged(Interval(4e-15, 0.5))
    ('1.49 (1.43 to 1.55)', '0.500', '0 (-0.500 to 0.500)')
    """
    if not math.isfinite(found.half) or found.half <= 1e-9 * abs(found.middle):
        return plain(found.middle, digits)
    middle = round(found.middle, digits - math.floor(math.log10(found.half)))
    return f"{plain(middle, digits)} ({plain(found.low, digits)} to {plain(found.high, digits)})"


def spread(numbers: Sequence[float], digits: int = 3) -> str:
    """Mean and standard deviation over seeds: 99.2 ± 0.8; of one seed the number alone."""
    if not numbers:
        return ""
    middle = statistics.fmean(numbers)
    if len(numbers) < 2:
        return plain(middle, digits)
    deviation = statistics.stdev(numbers)
    places = max(0, digits - 1 - math.floor(math.log10(abs(middle)))) if middle else digits
    if 0 < deviation < 0.5 * 10.0**-places:  # rather 132.0 ± 0.4 than 132 ± 0
        places += 1
    if places > 6:
        return f"{plain(middle, digits)} ± {plain(deviation, 1)}"
    return f"{middle:,.{places}f} ± {deviation:,.{places}f}"
