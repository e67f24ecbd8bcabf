"""The figures of a solve count every evaluation, and the reason names what ran (12.19)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from trust.helpers import CHECKPOINTS, GRADIENTS, Field, cases, normal, times, weigh


class Counted(Field):
    """Counts its calls; evaluated as a stack, one call is many evaluations."""

    calls = 0

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(t, y)


def as_module(f: Counted) -> Any:
    return f


def as_function(f: Counted) -> Any:
    return lambda t, y: f(t, y)


@pytest.mark.parametrize(
    ("make", "learnable", "gradient"),
    cases([as_module, as_function], [False, True], GRADIENTS),
)
def test_every_evaluation_of_the_forward_pass_is_counted(make: Any, learnable: bool, gradient: Any) -> None:
    f, t = Counted(), times(0.0, 0.4, 1.0).requires_grad_(learnable)
    sol = qj.solve(make(f), normal(4, 3), t, gradient=gradient)
    assert f.calls == sol.stats.forward_evaluations


# Where stacks of evaluations make up for those that are not counted, or where there are none.


@pytest.mark.parametrize(
    ("method", "gradient"),
    cases(["dopri5", "rk4"], GRADIENTS),
)
def test_evaluations_for_learnable_times_are_counted(method: str, gradient: Any) -> None:
    """One call may be many evaluations, so there are never fewer evaluations than calls."""
    f, t = Counted(), times(0.0, 0.4, 1.0).requires_grad_()
    options = {"step_size": 0.1} if method == "rk4" else {}
    sol = qj.solve(f, normal(4, 3), t, gradient=gradient, method=method, options=options)
    f.calls = 0
    weigh(sol.ys).backward()
    assert f.calls <= sol.stats.backward_evaluations


class Coupled(Field):
    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return super().forward(t, y - y.mean(0))


@pytest.mark.parametrize(
    "gradient",
    cases(["auto", "discrete", CHECKPOINTS]),
)
def test_the_reason_names_the_mode_that_ran(gradient: Any) -> None:
    """The samples influence each other, so that the parallel mode cannot have been used."""
    sol = qj.solve(Coupled(), normal(4, 3), times(0.0, 1.0), gradient=gradient)
    weigh(sol.ys).backward()
    assert sol.stats.reason
    assert "chose parallel" not in sol.stats.reason and not sol.stats.reason.endswith("parallel")


def test_the_reason_has_the_limit_that_explain_has() -> None:
    f = Field()
    found = qj.explain(f, normal(4, 3), times(0.0, 1.0), show=False)
    assert found.memory_limit > 2**27, "this machine has too little memory for the test"
    sol = qj.solve(f, normal(4, 3), times(0.0, 1.0))
    assert "within 64 MiB" not in sol.stats.reason


@pytest.mark.parametrize("limit", [2**20, 2**30])
def test_the_reason_has_the_limit_that_was_given(limit: int) -> None:
    sol = qj.solve(Field(), normal(4, 3), times(0.0, 1.0), gradient=qj.Auto(memory_limit=limit))
    assert f"within {limit // 2**20} MiB" in sol.stats.reason


def test_nothing_is_counted_twice_without_grad() -> None:
    f = Counted()
    with torch.no_grad():
        sol = qj.solve(f, normal(4, 3), times(0.0, 1.0))
    assert f.calls == sol.stats.forward_evaluations
