"""The benchmark of stiff problems: its problems are the same for every library, and its verdicts follow the records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.stiff import ATOL, DIFFRAX, RTOL, SCIPY, measure_ours, report, set_errors
from benchmarks.stiff_problems import PROBLEMS, draw


@pytest.mark.parametrize("name", PROBLEMS)
def test_jacobians_for_scipy_are_those_of_autograd(name: str) -> None:
    problem = PROBLEMS[name]
    y0, p = draw(name, 2)
    own = problem.parameters_of(p, 1)
    y = y0[1] + 1e-3
    found = problem.jacobian(y, own)
    tensors = tuple(torch.tensor(x) for x in own)
    exact = torch.func.jacrev(lambda y: problem.f(torch, y, tensors))(torch.tensor(y)).numpy()
    assert np.allclose(found, exact, rtol=1e-12)
    assert np.allclose(problem.f(np, y, own), problem.f(torch, torch.tensor(y), tensors).numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_smaller_batch_is_the_beginning_of_a_larger(name: str) -> None:
    small, large = draw(name, 2), draw(name, 5)
    assert np.array_equal(small[0], large[0][:2])
    assert np.array_equal(small[1][0], PROBLEMS[name].rows(large[1], slice(0, 2))[0])


def test_a_batch_is_measured() -> None:
    """The counts are those of a solve, and the states are near those of a tighter one."""
    record = measure_ours(PROBLEMS["network"], 2, 1, {"method": "kvaerno5"})
    assert record["status"] == "ok"
    assert 0 < record["jacobians"] <= record["factorisations"] < record["evaluations"]
    exact = measure_ours(PROBLEMS["network"], 2, 1, {"method": "radauIIA5", "rtol": 1e-9, "atol": 1e-11})
    set_errors(record, (exact["ys"], exact["gradient"]))
    assert record["error"] < 10.0 and record["gradient_error"] < 1e-4
    assert (RTOL, ATOL) == (1e-6, 1e-9)


def test_verdicts_follow_the_records() -> None:
    def record(method: str, **values: Any) -> dict[str, Any]:
        return {"cell": "robertson-100", "method": method, "status": "ok", **values}

    records = [
        record("quadjoint:kvaerno5", seconds_forward=1.0, seconds_gradient=2.0, gradient_error=1e-2),
        record("quadjoint:radauIIA5", seconds_forward=1.4, seconds_gradient=4.0, gradient_error=1e-6),
        record(DIFFRAX, seconds_forward=1.0, seconds_gradient=2.0),
        record(SCIPY, seconds_forward=10.0),
        {"cell": "robertson-100", "method": "quadjoint:kvaerno5 independent", "status": "refused: not yet"},
    ]
    text = report(records)
    best = "by the best of our methods at most 1.5x diffrax's kvaerno5"
    assert f"| forward {best} | robertson-100 1.00 | met |" in text
    assert f"| gradient {best} | robertson-100 2.00 ✗ | not met (0 of 1 cells) |" in text
    assert "| 20x SciPy one by one, in a batch | robertson-100 10.0 ✗ | not met (0 of 1 cells) |" in text
    assert "| gradients right to 1e-5 | robertson-100 1.0e-06 | met |" in text
    assert "refused: not yet" in text
