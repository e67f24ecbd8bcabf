"""Statements about errors of gradients, of integrals and of what was learnt: each verdict from invented records."""

from __future__ import annotations

from experiments.synthetic import clocked, run
from quadjoint.experiments.claims.checks_accuracy import (
    beats_any_power,
    close_errors,
    different_errors,
    larger_errors,
    learnt_well,
    less_error,
    most_accurate,
    near,
    order,
    same_gradients,
)
from quadjoint.experiments.verdicts import Verdict

AGREES, DISAGREES, OPEN, MISSING = Verdict


def test_errors_of_gradients_are_compared_over_end_times():
    def toy(method: str, errors: list[float], rtol: float = 1e-3) -> dict:
        return run(method, result={"errors": {"a": errors, "z0": errors}}, rtol=rtol)

    records = [toy("x", [1e-3, 2e-3, 3e-3]), toy("y", [2e-3, 4e-3, 6e-3]), toy("z", [1e-3, 9e-3, 1e-3])]
    assert close_errors("x", "y", 3.0)(records).verdict is AGREES
    assert close_errors("x", "y", 1.5)(records).verdict is DISAGREES
    assert close_errors("x", "z", 1.5)(records).verdict is OPEN
    assert close_errors("x", "w", 3.0)(records).verdict is MISSING
    tight = [toy("x", [9e-6] * 3, rtol=1e-6), toy("y", [1e-6] * 3, rtol=1e-6)]
    assert larger_errors("y", "x", ("a", "z0"))(records).verdict is AGREES
    assert larger_errors("x", "y", ("a",))(records).verdict is DISAGREES
    finding = larger_errors("y", "x", ("a", "z0"))(records + tight)  # at one tolerance, not at the other
    assert finding.verdict is DISAGREES and "at rtol 1e-6: 0.111 for the gradient in a" in finding.words
    assert larger_errors("x", "z", ("a",))(records).verdict is OPEN


def test_errors_that_differ_do_so_at_each_tolerance():
    def toy(method: str, error: float, rtol: float) -> dict:
        return run(method, result={"errors": {"a": [error, 1.1 * error, 0.9 * error]}}, rtol=rtol)

    loose = [toy("x", 1e-3, 1e-3), toy("y", 2e-3, 1e-3)]
    check = different_errors("x", "y", 1.001)
    assert check([*loose, toy("x", 1e-6, 1e-6), toy("y", 3e-6, 1e-6)]).verdict is AGREES
    assert check([*loose, toy("x", 1e-6, 1e-6), toy("y", 1e-6, 1e-6)]).verdict is DISAGREES
    assert check([]).verdict is MISSING
    crossed = [run("x", result={"errors": {"a": [1e-3, 2e-3]}}, rtol=1e-3)]
    crossed += [run("y", result={"errors": {"a": [2e-3, 1e-3]}}, rtol=1e-3)]  # apart, equal in the geometric mean
    assert check(crossed).verdict is AGREES


def test_gradients_whose_errors_are_small_are_near_each_other():
    def toy(method: str, errors: list[float]) -> dict:
        return run(method, result={"errors": {"a": errors}}, rtol=1e-3)

    check = near("x", "y", 10.0, ("a",))
    finding = check([toy("x", [1e-3, 2e-3]), toy("y", [2e-3, 2e-3])])
    assert finding.verdict is AGREES and "at most 0.0040 at rtol 0.001" in finding.words
    assert check([toy("x", [6e-3]), toy("y", [7e-3])]).verdict is OPEN  # perhaps of opposite signs
    assert check([toy("x", [1e-3]), toy("y", [2e-2])]).verdict is DISAGREES
    assert check([toy("x", [1e-3])]).verdict is MISSING


def test_a_smaller_error_is_smaller_at_every_width():
    def errors(method: str, found: list[float], width: int = 10) -> list[dict]:
        return [run(method, seed=k, width=width, result={"gradient_error": e}) for k, e in enumerate(found)]

    check, records = less_error("x", "y"), errors("x", [1e-3, 2e-3]) + errors("y", [2e-3, 4e-3])
    assert check(records).verdict is AGREES
    assert check(records + errors("x", [3.0, 3.1], 20) + errors("y", [1.0, 1.0], 20)).verdict is DISAGREES
    assert check(errors("x", [1e-3])).verdict is MISSING


def test_gradients_from_the_same_weights_are_compared_at_every_width():
    def line(off: float, width: int) -> dict:
        return clocked("adjoint", [1.0], width=width, result={"gradient_mismatch": off})

    check = same_gradients(("adjoint", "gq-paper"), 0.01)
    assert check([line(1e-3, 5), line(2e-3, 50)]).verdict is AGREES
    finding = check([line(1e-3, 5), line(0.5, 50)])
    assert finding.verdict is DISAGREES and finding.words.endswith("adjoint’s at width 50, by 50 %")
    assert check([run("adjoint", result={"gradient_mismatch": 0.5})]).verdict is MISSING  # of scaled weights


def test_learnt_samples_are_held_against_true_ones():
    def learnt(mean: float, deviation: float) -> list[dict]:
        fits = [{"t": t, "true": [1.0, 0.5], "learnt": [mean, deviation]} for t in (2.0, 10.0)]
        return [run("gq-paper", result={"solutions": {"fits": fits}})]

    check = learnt_well("gq-paper", 0.5, 0.25)
    assert check(learnt(1.1, 0.55)).verdict is AGREES
    assert check(learnt(1.4, 0.5)).verdict is DISAGREES
    assert check(learnt(1.0, 0.9)).verdict is DISAGREES
    assert check([]).verdict is MISSING


def test_gauss_beats_any_power():
    def rule(name: str, errors: list[float]) -> list[dict]:
        return [run(name, result={"evaluations": [1, 2, 4, 8], "errors": errors})]

    check = beats_any_power("gauss", 6)
    assert check(rule("gauss", [1.0, 1e-1, 1e-4, 1e-11])).verdict is AGREES
    assert check(rule("gauss", [1.0, 2.0**-7, 2.0**-14, 2.0**-21])).verdict is DISAGREES  # a fixed power
    assert check([]).verdict is MISSING


def test_orders_of_integration_rules():
    def rule(name: str, power: float, shift: int = 1) -> dict:
        counts = [2, 4, 8, 16]
        return run(name, result={"evaluations": [n + shift for n in counts], "errors": [n**-power for n in counts]})

    assert order("trapezoid", 2, 0.25)([rule("trapezoid", 2.0)]).verdict is AGREES
    assert order("trapezoid", 2, 0.25)([rule("trapezoid", 1.0)]).verdict is DISAGREES
    assert order("monte-carlo", 0.5, 0.15)([rule("monte-carlo", 0.5, shift=0)]).verdict is AGREES
    assert order("boole", 6, 0.25)([]).verdict is MISSING
    both = [rule("gauss", 8.0), rule("simpson", 4.0)]
    assert most_accurate("gauss", ("simpson",), (5, 9))(both).verdict is AGREES
    assert most_accurate("simpson", ("gauss",), (5, 9))(both).verdict is DISAGREES
    assert most_accurate("simpson", ("gauss",), (5, 9), least=True)(both).verdict is AGREES
    assert most_accurate("gauss", ("simpson",), (5, 9))(both[:1]).verdict is MISSING
