"""Statements about how accurate gradients, integrals and learnt distributions are, checked."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable

from quadjoint.experiments.claims.checks_time import as_ratio
from quadjoint.experiments.claims.checks_training import by_seed
from quadjoint.experiments.records import CLOCK, WIDTHS, Records, by, of_study, value, where, with_solutions
from quadjoint.experiments.verdicts import (
    UNKNOWN,
    Check,
    Finding,
    Interval,
    Verdict,
    above,
    all_of,
    below,
    interval,
    plain,
    short,
    within,
)


def same_gradients(methods: tuple[str, ...], limit: float) -> Check:
    """From the same weights, the methods' gradients differ from direct's by less than the limit, at every width."""

    def check(records: Records) -> Finding:
        found = {
            (r["config"]["method"], r["config"]["width"]): off
            for r in of_study(records, CLOCK)
            if r["config"]["method"] in methods and (off := value(r, "gradient_mismatch")) is not None
        }
        if not found:
            return UNKNOWN
        method, width = max(found, key=lambda cell: found[cell])
        words = f"the furthest from direct’s: {method}’s at width {width}, by {plain(100 * found[method, width])} %"
        return Finding(all_of(within(Interval(off), -limit, limit) for off in found.values()), words)

    return check


def less_error(first: str, second: str) -> Check:
    """One gradient of the first method has a smaller error than one of the second, seed by seed, at every width."""

    def check(records: Records) -> Finding:
        verdicts, words = [], []
        for (width,), here in by(of_study(records, WIDTHS), "width").items():
            one, other = (by_seed(where(here, method=m), "gradient_error") for m in (first, second))
            logs = [math.log(other[seed] / one[seed]) for seed in sorted(set(one) & set(other)) if one[seed] > 0]
            if logs:
                verdicts.append(above(interval(logs), 0.0))
                words.append(f"{as_ratio(interval(logs))} at width {width}")
        if not verdicts:
            return UNKNOWN
        return Finding(all_of(verdicts), f"{second}’s error over {first}’s: {', '.join(words)}")

    return check


def learnt_well(method: str, mean: float, deviation: float) -> Check:
    """At the times shown, the learnt samples' mean is less than a part of the true deviation away, and their deviation
    less than a part of itself. Of the run that the figure shows."""

    def check(records: Records) -> Finding:
        run = with_solutions(records, method)
        if run is None:
            return UNKNOWN
        fits = run["result"]["solutions"]["fits"]
        off = max(abs(fit["learnt"][0] - fit["true"][0]) / fit["true"][1] for fit in fits)
        wide = max(abs(fit["learnt"][1] / fit["true"][1] - 1) for fit in fits)
        words = f"{method}: means off by at most {plain(off)} deviations, deviations by {plain(100 * wide)} %"
        return Finding(Verdict.AGREES if off < mean and wide < deviation else Verdict.DISAGREES, words)

    return check


# The exponential, whose gradients are known: solves are exact computations, the spread is over end times ----


def _both_errors(records: Records, first: str, second: str, of: str) -> list[tuple[float, float]]:
    """The two methods' errors at the end times of one tolerance; nothing if one of them did not run."""
    pair = [next((r["result"]["errors"][of] for r in where(records, method=m)), None) for m in (first, second)]
    return [] if pair[0] is None or pair[1] is None else list(zip(*pair, strict=True))


def _log_errors(records: Records, first: str, second: str, of: str) -> list[float]:
    """Logarithms of the first method's error over the second's."""
    return [math.log(a / b) for a, b in _both_errors(records, first, second, of) if a > 0 and b > 0]


def near(first: str, second: str, times: float, of: tuple[str, ...]) -> Check:
    """Two methods' gradients are apart by less than so many times the relative tolerance, at every end time.

    They are apart by at least the difference and at most the sum of their errors.
    """

    def check(records: Records) -> Finding:
        verdicts, words = [], []
        for setting, part in _tolerances(records, (first, second)):
            pairs = [pair for name in of for pair in _both_errors(part, first, second, name)]
            if pairs:
                least, most = max(abs(a - b) for a, b in pairs), max(a + b for a, b in pairs)
                apart = Interval((least + most) / 2, (most - least) / 2)
                verdicts.append(below(apart, times * part[0]["config"]["rtol"]))
                words.append(f"at most {plain(most)} at {setting}")
        if not verdicts:
            return UNKNOWN
        return Finding(all_of(verdicts), f"{first}’s and {second}’s are apart by {'; '.join(words)}")

    return check


def close_errors(first: str, second: str, factor: float, of: tuple[str, ...] = ("a",)) -> Check:
    """Two methods' errors of quantities differ by at most a factor, on average over end times, at each tolerance."""
    return _errors(first, second, of, lambda logs: within(interval(logs), -math.log(factor), math.log(factor)))


def different_errors(first: str, second: str, factor: float, of: tuple[str, ...] = ("a",)) -> Check:
    """Two methods' errors differ by more than a factor, whichever is larger, on average over end times."""
    return _errors(first, second, of, lambda logs: above(interval(map(abs, logs)), math.log(factor)))


def larger_errors(first: str, second: str, of: tuple[str, ...]) -> Check:
    """The first method's errors of the gradients are larger than the second's, at each tolerance."""
    return _errors(first, second, of, lambda logs: above(interval(logs), 0.0))


def _errors(first: str, second: str, of: tuple[str, ...], judge: Callable[[list[float]], Verdict]) -> Check:
    def check(records: Records) -> Finding:
        verdicts, words = [], []
        for setting, part in _tolerances(records, (first, second)):
            known = {name: logs for name in of if (logs := _log_errors(part, first, second, name))}
            verdicts += [judge(logs) for logs in known.values()]
            factors = [f"{as_ratio(interval(logs))} for {_quantity(name)}" for name, logs in known.items()]
            words += [f"at {setting}: {', '.join(factors)}"] if known else []
        if not verdicts:
            return UNKNOWN
        return Finding(all_of(verdicts), f"{first}’s error over {second}’s {'; '.join(words)}")

    return check


def _tolerances(records: Records, methods: tuple[str, str]) -> list[tuple[str, Records]]:
    """The records of each tolerance, which is named with the C of the paper's method if that takes part."""
    named = []
    for (rtol,), part in reversed(by(records, "rtol").items()):
        c = {r["config"].get("c") for r in part} if "gq-paper" in methods else set()
        with_c = "".join(f", C = {short(number)}" for number in c if number)
        named.append((f"rtol {short(rtol)}{with_c}", part))
    return named


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


def beats_any_power(rule: str, power: float) -> Check:
    """The error of the rule falls with a power of the number of evaluations that grows, beyond this one."""

    def check(records: Records) -> Finding:
        result = next((r["result"] for r in where(records, method=rule)), None)
        if result is None:
            return UNKNOWN
        known = dict(zip(result["evaluations"], result["errors"], strict=True))
        doubled = [n for n in (1, 2, 4, 8) if 2 * n in known and known.get(n, 0.0) > 0 and known[2 * n] > 1e-13]
        powers = [math.log2(known[n] / known[2 * n]) for n in doubled]
        if len(powers) < 2:
            return UNKNOWN
        grows = all(later > earlier for earlier, later in _pairs(powers)) and powers[-1] > power
        listed = ", ".join(f"{plain(p)} from {n} to {2 * n}" for n, p in zip(doubled, powers, strict=True))
        return Finding(
            Verdict.AGREES if grows else Verdict.DISAGREES, f"the error falls with the power {listed} points"
        )

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
