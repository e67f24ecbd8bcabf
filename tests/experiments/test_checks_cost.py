"""Statements about evaluations and memory: each verdict from invented records."""

from __future__ import annotations

from experiments.synthetic import run
from quadjoint.experiments.claims.checks_cost import (
    constant_memory,
    evaluations,
    fewer_evaluations,
    leaner,
    less_memory,
)
from quadjoint.experiments.verdicts import Verdict, opposite

AGREES, DISAGREES, OPEN, MISSING = Verdict


def counted(method: str, backward: list[float], nodes: float = 0.0) -> list[dict]:
    made = []
    for k, number in enumerate(backward):
        counts = {"forward_evaluations": 20.0, "backward_evaluations": number + nodes, "quadrature_nodes": nodes}
        made.append(run(method, seed=k, result={"per_gradient": counts}))
    return made


def test_evaluations_of_the_backward_pass():
    half = evaluations("adjoint", 0.375, 0.625)
    assert half(counted("adjoint", [10, 11, 9])).verdict is AGREES
    finding = half(counted("adjoint", [20, 22, 18]))
    assert finding.verdict is DISAGREES and finding.words.startswith("1.00 (0.752 to 1.25) times as many as forwards")
    assert half(counted("adjoint", [20, 2, 8])).verdict is OPEN
    assert half([]).verdict is MISSING
    assert evaluations("gq-paper", 0.15, 0.375)(counted("gq-paper", [5, 5, 5], nodes=2)).verdict is AGREES
    nodes = evaluations("gq-paper", 0.075, 0.15, of="quadrature_nodes")
    assert nodes(counted("gq-paper", [5, 5, 5], nodes=2)).verdict is AGREES
    capped = counted("gq-paper", [5, 5, 5], nodes=64)  # as many as there may be: no share of anything
    assert nodes(counted("gq-paper", [5, 5, 5], nodes=2) + capped).verdict is AGREES
    fifth = fewer_evaluations("gq-paper", "adjoint", 0.75, 0.85, of="quadrature_nodes")
    assert fifth(counted("gq-paper", [5, 5], nodes=2) + counted("adjoint", [10, 10])).verdict is AGREES
    assert fifth(counted("gq-paper", [5, 5], nodes=9) + counted("adjoint", [10, 10])).verdict is DISAGREES
    fewer = fewer_evaluations("seminorm", "adjoint", 0.3, 0.8)
    assert fewer(counted("seminorm", [10, 11]) + counted("adjoint", [20, 22])).verdict is AGREES
    finding = fewer(counted("seminorm", [20, 24]) + counted("adjoint", [20, 20]))
    assert finding.verdict is OPEN and finding.words.endswith("times as many as adjoint")
    assert fewer(counted("seminorm", [20, 22]) + counted("adjoint", [20, 22])).verdict is DISAGREES
    assert fewer([]).verdict is MISSING


def test_memory_is_counted_without_noise():
    records = [run("a", result={"peak_memory": 2**20, "seconds_per_gradient": 1.0})]
    records += [run("b", result={"peak_memory": 3 * 2**20, "seconds_per_gradient": 1.0})]
    assert leaner("a", "b")(records).words == "peak at width 10: a 1.00 MiB, b 3.00 MiB"
    assert [leaner(*pair)(records).verdict for pair in ("ab", "ba", "ac")] == [AGREES, DISAGREES, MISSING]
    wider = [
        run(m, width=90, result={"peak_memory": peak, "seconds_per_gradient": 1.0}) for m, peak in (("a", 5), ("b", 4))
    ]
    finding = leaner("a", "b")(records + wider)
    assert finding.verdict is OPEN and finding.words.endswith("; a needs less at 1 of 2 widths")
    growing, flat = run("a", result={"peak_memory": [10, 40]}), run("b", result={"peak_memory": [10, 11]})
    checks = [constant_memory(m)([growing, flat]).verdict for m in "abc"]
    assert checks == [DISAGREES, AGREES, MISSING]
    assert opposite(constant_memory("a"))([growing]).verdict is AGREES
    larger = run("b", width=1000, result={"peak_memory": [10, 90]})
    finding = constant_memory("b")([larger, flat])
    assert finding.verdict is OPEN and "90 bytes at the tightest, with a state of 1000 numbers" in finding.words
    small = [run("a", width=1, result={"peak_memory": [10]}), run("b", width=1, result={"peak_memory": [11]})]
    assert [less_memory(*pair)(small).verdict for pair in ("ab", "ba", "ac")] == [AGREES, DISAGREES, MISSING]
    alike = [run(m, width=9, result={"peak_memory": [10]}) for m in "ab"]
    assert less_memory("a", "b")(small + alike).verdict is OPEN  # a tie says nothing
    assert less_memory("a", "b")(small).words == "a 10 bytes, b 11 bytes, with a state of one number"
