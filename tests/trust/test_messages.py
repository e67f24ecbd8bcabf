"""Messages name the cause and a remedy that works (20.9); defaults and names mean one thing (20.10)."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch

import quadjoint as qj
from quadjoint import METHODS
from trust.helpers import Field, cases, environment, normal, times


def test_a_gradient_that_is_recommended_works() -> None:
    f, y0, t = Field(), normal(2, 3), times(0.0, 1.0)
    with pytest.raises(ValueError, match="scipy_solver") as error:
        qj.odeint(f, y0, t, method="scipy_solver", gradient="discrete")
    advice = str(error.value).split("use ")[-1]
    recommended = [name for name in qj.GRADIENTS if f"'{name}'" in advice]
    assert recommended
    for name in recommended:
        try:
            qj.odeint(f, y0, t, method="scipy_solver", gradient=name).sum().backward()
        except ValueError as refusal:
            pytest.fail(f"gradient={name!r} is recommended and refused: {refusal}")


@pytest.mark.parametrize(
    ("rtol", "atol"),
    cases([0.0, 0, torch.tensor(0.0)], [0.0, 0, torch.tensor(0.0)]),
)
def test_tolerances_of_zero_are_named(rtol: Any, atol: Any) -> None:
    with pytest.raises(ValueError, match="rtol and atol"):
        qj.odeint(Field(), normal(2, 3), times(0.0, 1.0), rtol=rtol, atol=atol)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_state_of_zero_without_an_absolute_tolerance(rate: float) -> None:
    """Its size says nothing about the error that may be made: solved, or refused with the name of the argument."""
    y0 = torch.zeros(2, dtype=torch.float64)
    try:
        ys = qj.odeint(lambda t, y: rate * torch.ones_like(y), y0, times(0.0, 1.0), rtol=1e-6, atol=0.0)
    except (ValueError, qj.SolveError) as error:
        assert "atol" in str(error), str(error)
    else:
        assert ys[-1].tolist() == pytest.approx([rate, rate])


def test_a_nested_tuple_is_refused_by_the_part_that_is_wrong() -> None:
    nested = ((torch.zeros(2), 1.0), torch.ones(1))
    with pytest.raises(TypeError, match=r"y0\[0\]\[1\]"):
        qj.odeint(lambda t, y: y, nested, times(0.0, 1.0))


def test_the_reason_under_saved_tensor_hooks_is_a_sentence() -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        sol = qj.solve(Field(), normal(2, 3), times(0.0, 1.0))
    assert sol.stats.reason.startswith("auto chose")
    assert not sol.stats.reason.endswith("must find the same")


LOW = [
    (torch.bfloat16, 1e-5),
    (torch.bfloat16, 1e-3),
    (torch.float16, 1e-5),
    (torch.float32, 1e-9),
    (torch.float64, 1e-17),
]


@pytest.mark.parametrize("case", cases(LOW))
def test_tolerances_below_the_resolution_of_the_dtype_are_remarked_on(case: tuple[torch.dtype, float]) -> None:
    dtype, rtol = case
    y0, few = torch.ones(2, dtype=dtype), {"max_num_steps": 300}
    with pytest.warns(qj.QuadjointWarning, match="rtol"), contextlib.suppress(qj.SolveError):
        qj.odeint(lambda t, y: -y, y0, torch.tensor([0.0, 0.1]), rtol=rtol, atol=rtol, options=few)


@pytest.mark.parametrize("case", [(torch.bfloat16, 0.1), (torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_tolerances_that_can_be_met_are_not(case: tuple[torch.dtype, float]) -> None:
    dtype, rtol = case
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qj.odeint(lambda t, y: -y, torch.ones(2, dtype=dtype), torch.tensor([0.0, 0.1]), rtol=rtol, atol=rtol)


# Defaults and names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cases(["method", "rtol", "atol", "gradient"]))
def test_the_layer_has_the_defaults_of_the_function(name: str) -> None:
    layer, function = (inspect.signature(x).parameters[name].default for x in (qj.nn.NeuralODE, qj.odeint))
    assert layer == function


def test_the_layer_gives_the_states_of_the_function() -> None:
    f, y0 = Field(seed=3), 1e-2 * normal(4, 3)
    assert torch.equal(qj.nn.NeuralODE(f)(y0), qj.odeint(f, y0, times(0.0, 1.0))[-1])


def test_a_built_in_method_cannot_be_replaced() -> None:
    """In a process of its own, where nothing is lost if it can."""
    program = """
import quadjoint as qj
for name in qj.METHODS:
    try:
        qj.register_method(name, qj.TABLEAUS["rk4"])
    except ValueError as error:
        assert name in str(error), error
    else:
        raise SystemExit(f"{name} was replaced")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr


def test_the_list_of_methods_is_always_current() -> None:
    qj.register_method("trusted_rk4", dataclasses.replace(qj.TABLEAUS["rk4"], name="trusted_rk4"))
    assert "trusted_rk4" in qj.METHODS
    assert "trusted_rk4" in METHODS, "imported before"
