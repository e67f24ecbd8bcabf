"""Ordinary input on which the library stopped: grids, large times, SciPy, tolerances (20.1 to 20.3, 20.5)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from quadjoint import torchdiffeq as dropin
from trust.helpers import (
    DTYPE,
    TIGHT,
    Field,
    assert_close,
    cases,
    normal,
    times,
    weigh,
)


@pytest.mark.parametrize("solve", [qj.odeint, dropin.odeint, dropin.odeint_adjoint])
@pytest.mark.parametrize("dtype", cases([torch.float32, DTYPE]))
def test_any_multiple_of_a_step_size_is_a_grid(dtype: torch.dtype, solve: Any) -> None:
    """Whether n h, rounded to the dtype of the times, is a little more or less than n steps of h."""
    failures = []
    for h in (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.7):
        for n in range(1, 21):
            t = torch.tensor([0.0, n * h], dtype=dtype)
            try:
                ys = solve(lambda t, y: torch.ones_like(y), torch.zeros(1), t, method="euler", options={"step_size": h})
                assert ys[-1].item() == pytest.approx(n * h, rel=1e-5)
            except ValueError:
                failures.append((h, n))
    assert not failures, f"{len(failures)} of 180 pairs (h, n) fail, the first with {failures[0]}"


@pytest.mark.parametrize("start", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, DTYPE])
@pytest.mark.parametrize("origin", cases([0.0, 1000000.0, 1700000000.0]))
def test_a_state_at_rest_stays_there_at_any_time(origin: float, dtype: torch.dtype, start: float) -> None:
    y0, t = torch.full((2,), start, dtype=dtype), origin + times(0.0, 1.0)
    ys = qj.odeint(lambda t, y: y * (1.0 - y), y0, t)
    assert torch.equal(ys[-1], y0)


# SciPy ----------------------------------------------------------------------------------------------------------------


def test_scipy_solves_are_differentiable_in_times_by_default() -> None:
    t, w = times(0.0, 1.0).requires_grad_(), torch.tensor(0.5, dtype=DTYPE, requires_grad=True)
    ys = qj.odeint(lambda t, y: -w * y, torch.ones(1, dtype=DTYPE), t, method="scipy_solver", **TIGHT)
    y = math.exp(-0.5)
    wanted = [times(0.5 * y, -0.5 * y), torch.tensor(-y, dtype=DTYPE)]
    assert_close(torch.autograd.grad(ys[-1].sum(), (t, w)), wanted, within=1e-4)


def robertson(t: Tensor, y: Tensor) -> Tensor:
    a, b, c = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
    return torch.stack([b - a, a - b - c, c])


@pytest.mark.parametrize(
    "solver",
    cases(["Radau", "BDF", "LSODA"]),
)
def test_implicit_solvers_need_no_more_evaluations_in_float32(solver: str) -> None:
    """Differences of float32 numbers make a poor Jacobian; there is a better one. 79 evaluations against 2218."""
    evaluations = {}
    for dtype in (DTYPE, torch.float32):
        y0 = torch.tensor([1.0, 0.0, 0.0], dtype=dtype)
        options = {"solver": solver}
        with torch.no_grad():
            sol = qj.solve(robertson, y0, times(0.0, 0.4), method="scipy_solver", options=options, rtol=1e-4, atol=1e-7)
        evaluations[dtype] = sol.stats.forward_evaluations
    assert evaluations[torch.float32] < 2 * evaluations[DTYPE]


ENTRY = "atol per entry"
TOLERANCES: dict[str, dict[str, Any]] = {
    "0-d tensor": {"rtol": torch.tensor(1e-6), "atol": torch.tensor(1e-8)},
    "rtol per feature": {"rtol": torch.full((3,), 1e-6)},
    "atol per feature": {"atol": torch.full((3,), 1e-8)},
    ENTRY: {"atol": torch.full((2, 3), 1e-8)},
}


@pytest.mark.parametrize(
    ("method", "kind", "gradient"),
    cases(["dopri5", "scipy_solver"], TOLERANCES, ["auto", "gq", "adjoint", "seminorm"]),
)
def test_tolerances_are_numbers_or_tensors(method: str, kind: str, gradient: Any) -> None:
    found = []
    for how, settings in (("direct", TIGHT), (gradient, {**TIGHT, "method": method, **TOLERANCES[kind]})):
        f = Field()
        ys = qj.odeint(f, normal(2, 3), times(0.0, 1.0), gradient=how, **settings)
        found.append(torch.autograd.grad(weigh(ys), list(f.parameters())))
    assert_close(found[1], found[0], within=1e-3)


@pytest.mark.parametrize(
    ("method", "name", "gradient"),
    cases(["dopri5", "scipy_solver"], ["rtol", "atol"], ["gq", "adjoint", "seminorm"]),
)
def test_tolerances_of_a_tuple(method: str, name: str, gradient: Any) -> None:
    w = torch.tensor(0.5, dtype=DTYPE, requires_grad=True)
    y0 = (torch.ones(2, dtype=DTYPE), torch.ones(3, dtype=DTYPE))
    settings: dict[str, Any] = {**TIGHT, name: (1e-6, 1e-7)}
    left, right = qj.odeint(
        lambda t, y: (-w * y[0], w * y[1]), y0, times(0.0, 1.0), method=method, gradient=gradient, **settings
    )
    wanted = torch.tensor(-2 * math.exp(-0.5) + 3 * math.exp(0.5), dtype=DTYPE)
    assert_close(torch.autograd.grad(left[-1].sum() + right[-1].sum(), w), [wanted], within=1e-3)
