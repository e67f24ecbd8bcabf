"""What the paper reports: the numbers of its tables and the statements of its text, each with a check on our results.

The paper's curves are pictures without numbers; of them only the statements can be compared. Its times come from an
RTX 2080, so ratios are compared, never seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quadjoint.experiments.plots import Records, mean_and_deviation, of_study, value

# Table: effect of C, nested spheres, width 1500, five seeds. C: (seconds, deviation, accuracy, deviation).
SPHERES_C = {
    1e-3: (61.4, 3.0, 79.0, 26.9),
    1e-1: (89.8, 3.1, 95.6, 8.8),
    1e2: (141.0, 2.4, 95.8, 8.4),
    1e5: (141.7, 2.4, 95.8, 8.4),
}
# Table: regular and irregular times, sines, width 1000, five seeds.
SINES_REGULARITY = {
    (10, "regular"): (48.5, 1.3, 0.08, 0.07),
    (10, "merged"): (239.2, 2.9, 0.07, 0.06),
    (50, "regular"): (96.7, 4.9, 0.11, 0.09),
    (50, "merged"): (1880.5, 607.6, 0.09, 0.08),
}
# Table: number of cosines, OU, width 20, five seeds. Cosines: (minutes, deviation, KL, deviation).
OU_COSINES = {
    0: (9.62, 0.09, 0.7555, 0.3230),
    1: (11.34, 0.04, 0.2801, 0.0248),
    5: (12.97, 0.06, 0.0749, 0.0086),
    10: (19.88, 6.23, 0.0650, 0.0074),
    25: (33.13, 0.96, 0.0618, 0.0068),
    50: (51.97, 0.69, 0.0612, 0.0066),
}


@dataclass(frozen=True)
class Finding:
    """Whether our results agree with a statement: yes, no, or None where they cannot tell; and the numbers."""

    agrees: bool | None
    words: str


@dataclass(frozen=True)
class Claim:
    """A statement and its check on the records of its experiment; the paper's, unless it is ours."""

    statement: str
    check: Callable[[Records], Finding]
    ours: bool = False


UNKNOWN = Finding(None, "no runs here that could tell")


def largest(records: Records) -> Records:
    """The records of the largest width that was timed."""
    timed = of_study(records, "widths", "time", "batch")
    width = max((r["config"]["width"] for r in timed), default=None)
    return [r for r in timed if r["config"]["width"] == width]


def mean(records: Records, method: str, *path: str) -> float | None:
    """Mean over seeds of a number of one method."""
    numbers = [value(r, *path) for r in records if r["config"]["method"] == method]
    numbers = [n for n in numbers if n is not None]
    return mean_and_deviation(numbers)[0] if numbers else None


def only(check: Callable[[Records], Finding], **fields: object) -> Callable[[Records], Finding]:
    """The check on those records whose configuration has these values."""
    return lambda records: check([r for r in records if all(r["config"].get(k) == v for k, v in fields.items())])


def faster(first: str, second: str) -> Callable[[Records], Finding]:
    """At the largest width, the first method needs less time per step than the second."""

    def check(records: Records) -> Finding:
        chosen = largest(records)
        a, b = (mean(chosen, method, "seconds_per_gradient") for method in (first, second))
        if not a or not b:
            return UNKNOWN
        width = chosen[0]["config"]["width"]
        return Finding(a < b, f"{second} takes {b / a:.2f} times as long as {first} at width {width}")

    return check


def same(metric: str, methods: tuple[str, ...], *, relative: float, absolute: float) -> Callable[[Records], Finding]:
    """After training, the methods' metrics agree within two deviations over seeds or within the tolerance."""

    def check(records: Records) -> Finding:
        trained = of_study(records, "widths")
        worst, words, seen = 0.0, "", False
        for width in sorted({r["config"]["width"] for r in trained}):
            here = [r for r in trained if r["config"]["width"] == width]
            means = {m: mean(here, m, "final", metric) for m in methods}
            found = {m: v for m, v in means.items() if v is not None}
            if len(found) < 2:
                continue
            spread = max(_deviation(here, m, metric) for m in found)
            gap = max(found.values()) - min(found.values())
            allowed = max(2 * spread, relative * max(abs(v) for v in found.values()), absolute)
            if not seen or gap / allowed > worst:
                seen, worst = True, gap / allowed
                listed = ", ".join(f"{m} {v:.4g}" for m, v in found.items())
                words = f"largest difference at width {width}: {listed} (allowed {allowed:.2g})"
        return Finding(worst <= 1.0, words) if seen else UNKNOWN

    return check


def _deviation(records: Records, method: str, metric: str) -> float:
    numbers = [value(r, "final", metric) for r in records if r["config"]["method"] == method]
    return mean_and_deviation(numbers)[1]


def matching_curves(curve: str, methods: tuple[str, ...], *, relative: float) -> Callable[[Records], Finding]:
    """At the largest trained width, the methods' mean curves stay together, epoch by epoch.

    Together: apart by at most ``relative`` times the first value of the curve.
    """

    def check(records: Records) -> Finding:
        trained = of_study(records, "widths")
        width = max((r["config"]["width"] for r in trained), default=None)
        found: dict[str, list[float]] = {}
        for method in methods:
            runs = [
                r["result"]["curves"][curve]
                for r in trained
                if r["config"]["method"] == method and r["config"]["width"] == width
            ]
            if runs:
                found[method] = [sum(values) / len(values) for values in zip(*runs, strict=True)]
        if len(found) < 2:
            return UNKNOWN
        gaps = [max(values) - min(values) for values in zip(*found.values(), strict=True)]
        first = max(values[0] for values in found.values())
        if not first > 0:
            return UNKNOWN
        gap = max(gaps) / first
        epoch = gaps.index(max(gaps)) + 1
        words = f"width {width}: at most {100 * gap:.2g} % of the first value apart (epoch {epoch} of {len(gaps)})"
        return Finding(gap <= relative, words)

    return check


def comparable_times(methods: tuple[str, ...], factor: float) -> Callable[[Records], Finding]:
    """At the smallest width, the methods' times differ by at most a factor."""

    def check(records: Records) -> Finding:
        trained = of_study(records, "widths")
        width = min((r["config"]["width"] for r in trained), default=None)
        here = [r for r in trained if r["config"]["width"] == width]
        means = {m: mean(here, m, "seconds_per_gradient") for m in methods}
        found = {m: seconds for m, seconds in means.items() if seconds}
        if len(found) < len(methods):
            return UNKNOWN
        words = ", ".join(f"{m} {1000 * seconds:.3g} ms" for m, seconds in found.items())
        return Finding(max(found.values()) <= factor * min(found.values()), f"a step at width {width}: {words}")

    return check


def leaner(first: str, second: str) -> Callable[[Records], Finding]:
    """At the largest width, one gradient of the first method needs less memory than one of the second."""

    def check(records: Records) -> Finding:
        chosen = largest(records)
        a, b = (mean(chosen, method, "peak_memory") for method in (first, second))
        if not a or not b:
            return UNKNOWN
        width = chosen[0]["config"]["width"]
        return Finding(a < b, f"peak at width {width}: {first} {a / 2**20:.3g} MiB, {second} {b / 2**20:.3g} MiB")

    return check


def growth(first: str, second: str) -> Callable[[Records], Finding]:
    """The first method's time grows less with width than the second's, smallest to largest width."""

    def check(records: Records) -> Finding:
        timed = of_study(records, "widths", "time")
        widths = sorted({r["config"]["width"] for r in timed})
        if len(widths) < 2:
            return UNKNOWN
        ends = [[r for r in timed if r["config"]["width"] == w] for w in (widths[0], widths[-1])]
        ratios = []
        for method in (first, second):
            low, high = (mean(part, method, "seconds_per_gradient") for part in ends)
            if not low or not high:
                return UNKNOWN
            ratios.append(high / low)
        words = f"from width {widths[0]} to {widths[-1]}: {first} {ratios[0]:.1f} times, {second} {ratios[1]:.1f} times"
        return Finding(ratios[0] < ratios[1], words)

    return check


def constant_memory(method: str) -> Callable[[Records], Finding]:
    """The method's peak memory does not grow with the number of steps (at the largest state)."""

    def check(records: Records) -> Finding:
        mine = [r for r in records if r["config"]["method"] == method and r["result"].get("peak_memory")]
        if not mine:
            return UNKNOWN
        record = max(mine, key=lambda r: r["config"]["width"])
        peaks = record["result"]["peak_memory"]
        words = f"{method}: {peaks[0]} bytes at the loosest tolerance, {peaks[-1]} at the tightest"
        return Finding(peaks[-1] <= 1.25 * peaks[0], words)

    return check


def less_memory(first: str, second: str) -> Callable[[Records], Finding]:
    """At the tightest tolerance and the paper's state of one number, the first method needs less than the second."""

    def check(records: Records) -> Finding:
        peaks = {r["config"]["method"]: r["result"]["peak_memory"][-1] for r in records if r["config"]["width"] == 1}
        if first not in peaks or second not in peaks:
            return UNKNOWN
        return Finding(peaks[first] < peaks[second], f"{first} {peaks[first]} bytes, {second} {peaks[second]} bytes")

    return check


def opposite(check: Callable[[Records], Finding]) -> Callable[[Records], Finding]:
    """The check of the contrary, on the same numbers."""

    def contrary(records: Records) -> Finding:
        finding = check(records)
        return finding if finding.agrees is None else Finding(not finding.agrees, finding.words)

    return contrary


def close_errors(first: str, second: str, factor: float, of: str = "a") -> Callable[[Records], Finding]:
    """On the exponential, the two methods' largest errors of a quantity differ by at most a factor."""

    def check(records: Records) -> Finding:
        name = f"{of}_error"
        pairs = [(mean(part, first, "final", name), mean(part, second, "final", name)) for part in _tols(records)]
        known = [(a, b) for a, b in pairs if a and b]
        if not known:
            return UNKNOWN
        ratio = max(max(a / b, b / a) for a, b in known)
        words = "; ".join(f"{first} {a:.1e}, {second} {b:.1e}" for a, b in known)
        what = "the loss" if of == "loss" else f"the gradient in {of}"
        return Finding(ratio <= factor, f"largest relative errors of {what}: {words}")

    return check


def _tols(records: Records) -> list[Records]:
    found = sorted({r["config"].get("rtol", 0.0) for r in records}, reverse=True)
    return [[r for r in records if r["config"].get("rtol", 0.0) == tol] for tol in found]


def trend(study: str, field: str, path: tuple[str, ...], method: str, *, rising: bool) -> Callable[[Records], Finding]:
    """A number of the ablation rises (or falls) from the first to the last setting."""

    def check(records: Records) -> Finding:
        mine = [r for r in of_study(records, study) if r["config"]["method"] == method]
        settings = sorted({r["config"][field] for r in mine})
        if len(settings) < 2:
            return UNKNOWN
        means = [mean([r for r in mine if r["config"][field] == s], method, *path) for s in settings]
        if means[0] is None or means[-1] is None:
            return UNKNOWN
        words = ", ".join(f"{field} {s:g}: {m:.4g}" for s, m in zip(settings, means, strict=True) if m is not None)
        return Finding((means[-1] > means[0]) == rising, words)

    return check


def irregular_cost(first: str, second: str, method: str, limit: float) -> Callable[[Records], Finding]:
    """One spacing of times costs more (limit >= 1) than another; by how much is said."""

    def check(records: Records) -> Finding:
        words, ratios = [], []
        for times in (10, 50):
            here = [r for r in of_study(records, "regularity") if r["config"]["times"] == times]
            a, b = (
                mean([r for r in here if r["config"]["spacing"] == s], method, "seconds_per_gradient")
                for s in (first, second)
            )
            if a and b:
                ratios.append(b / a)
                words.append(f"{times} times: {b / a:.2f}")
        if not ratios:
            return UNKNOWN
        return Finding(min(ratios) > limit, f"{method}, {second} over {first}, {'; '.join(words)}")

    return check
