"""Every wrong input and every failed solve: which exception, and that its message names what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from quadjoint.errors import NonFiniteStateError, SolveError, StepSizeUnderflowError, TooManyStepsError

NAN, INF = float("nan"), float("inf")


def decay(t: Tensor, y: Any) -> Any:
    return -y if isinstance(y, Tensor) else tuple(-part for part in y)


def solve(f: Any = decay, y0: Any = (1.0, 2.0), t: Any = (0.0, 1.0), **arguments: Any) -> Any:
    """Solve with y0 and t given as tuples of numbers (made into tensors) or as they are."""
    y0 = torch.tensor(y0) if isinstance(y0, tuple) and y0 and isinstance(y0[0], float | int) else y0
    t = torch.tensor(t) if isinstance(t, tuple) else t
    return qj.odeint(f, y0, t, **arguments)


def in_place(t: Tensor, y: Tensor) -> Tensor:
    return y.mul_(-1.0)


PAIR = (torch.ones(2), torch.ones(3))
ROWS = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.5, 1.0]])

# input, exception, what its message must contain
BAD_INPUT: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    # t
    "t as list": ({"t": [0.0, 1.0]}, TypeError, r"t must be a tensor of times; got list.*torch.as_tensor"),
    "t as number": ({"t": 1.0}, TypeError, r"t must be a tensor of times; got float"),
    "t of integers": ({"t": (0, 1)}, TypeError, r"t must be floating point; got torch.int64"),
    "t complex": ({"t": torch.tensor([0j, 1j])}, TypeError, r"t must be floating point; got torch.complex64"),
    "t without dimensions": ({"t": torch.tensor(1.0)}, ValueError, r"t must have shape \(K,\).*got \(\)"),
    "t empty": ({"t": torch.empty(0)}, ValueError, r"t must have shape \(K,\).*got \(0,\)"),
    "t of three dimensions": ({"t": torch.zeros(1, 1, 2)}, ValueError, r"t must have shape.*got \(1, 1, 2\)"),
    "t up and down": ({"t": (0.0, 1.0, 0.5)}, ValueError, r"t must be strictly increasing or .*got \[0, 1, 0.5\]"),
    "t repeated": ({"t": (0.0, 1.0, 1.0)}, ValueError, r"t must be strictly increasing or strictly decreasing"),
    "t NaN": ({"t": (0.0, NAN)}, ValueError, r"t must be finite; entry 1 is nan"),
    "t infinite": ({"t": (0.0, INF)}, ValueError, r"t must be finite; entry 1 is inf"),
    # y0
    "y0 of integers": ({"y0": (1, 2)}, TypeError, r"y0 must be floating point or complex; got torch.int64.*y0.float"),
    "y0 of booleans": ({"y0": torch.tensor([True])}, TypeError, r"y0 must be floating point.*torch.bool"),
    "y0 as number": ({"y0": 1.0}, TypeError, r"y0 must be a tensor, or tensors in tuples.*; got float"),
    "y0 a list of numbers": ({"y0": [1.0]}, TypeError, r"y0 must hold tensors only; y0\[0\] is a float"),
    "y0 as empty tuple": ({"y0": ()}, TypeError, r"y0 must be a tensor, or tensors in.*got an empty tuple"),
    "y0 NaN": ({"y0": (1.0, NAN)}, ValueError, r"y0 has entries that are NaN or infinite"),
    "y0 infinite": ({"y0": (torch.ones(1), torch.tensor([INF]))}, ValueError, r"y0\[1\] has entries that are NaN"),
    "y0 of two dtypes": ({"y0": (torch.ones(1), torch.ones(1).double())}, TypeError, r"y0\[1\] is torch.float64"),
    # f
    "f a number": ({"f": 3.0}, TypeError, r"f must be callable as f\(t, y\); got float"),
    "f of another shape": ({"f": lambda t, y: y[:1]}, ValueError, r"f returned shape \(1,\).*state has shape \(2,\)"),
    "f broadcast": ({"f": lambda t, y: y.sum()}, ValueError, r"f returned shape \(\).*state has shape \(2,\)"),
    "f of another dtype": ({"f": lambda t, y: y.double()}, TypeError, r"f returned dtype torch.float64.*torch.float32"),
    "f on another device": ({"f": lambda t, y: y.to("meta")}, ValueError, r"f returned a tensor on meta"),
    "f nothing": ({"f": lambda t, y: None}, TypeError, r"f must return a tensor like the state; got NoneType"),
    "f a tuple": ({"f": lambda t, y: (y,)}, TypeError, r"f must return a tensor like the state; got tuple"),
    "f in place": ({"f": in_place}, ValueError, r"f changed its input y in place"),
    "f a tensor": ({"f": lambda t, y: y[0], "y0": PAIR}, ValueError, r"f returned a Tensor, where .* a tuple of 2"),
    "f too few": ({"f": lambda t, y: y[:1], "y0": PAIR}, ValueError, r"f returned a tuple of 1, where .*of 2"),
    "f swapped": ({"f": lambda t, y: y[::-1], "y0": PAIR}, ValueError, r"f returned shape \(3,\) for y\[0\]"),
    "f one dtype": (
        {"f": lambda t, y: (y[0], y[1].double()), "y0": PAIR},
        TypeError,
        r"dtype torch.float64 for y\[1\]",
    ),
    "f one nothing": ({"f": lambda t, y: (y[0], None), "y0": PAIR}, TypeError, r"f returned NoneType for y\[1\]"),
    # names
    "method": ({"method": "dopri6"}, ValueError, r"method = 'dopri6' is not known. Did you mean 'dopri\d'.*Known: "),
    "method None": ({"method": None}, ValueError, r"method = None is not known.*Known: "),
    "option": ({"options": {"first_stp": 1}}, ValueError, r"options\['first_stp'\].*Did you mean 'first_step'"),
    "option of fixed steps": ({"options": {"step_size": 1}}, ValueError, r"options\['step_size'\].*'dopri5'"),
    "options no dict": ({"options": ["norm"]}, TypeError, r"options must be a dict; got list"),
    "gradient": ({"gradient": "adjont"}, ValueError, r"gradient = 'adjont' is not known. Did you mean 'adjoint'"),
    "gradient class": ({"gradient": qj.Direct}, TypeError, r"gradient must be a name or a gradient object"),
    # tolerances
    "rtol negative": ({"rtol": -1e-3}, ValueError, r"rtol must not be negative or NaN; got -0.001"),
    "atol NaN": ({"atol": NAN}, ValueError, r"atol must not be negative or NaN; got nan"),
    "atol tensor": ({"atol": torch.tensor([1e-3, -1.0])}, ValueError, r"atol must not be negative or NaN; got -1"),
    "atol shape": ({"atol": torch.ones(3)}, ValueError, r"atol has shape \(3,\).*state.*\(2,\)"),
    "rtol learnable": ({"rtol": torch.ones((), requires_grad=True)}, ValueError, r"rtol cannot require grad"),
    "rtol word": ({"rtol": "small"}, TypeError, r"rtol must be a number, a tensor or a tuple of them; got str"),
    "rtol tuple": ({"rtol": (1e-3, 1e-3)}, TypeError, r"rtol is a tuple, but the state is a tensor"),
    "rtol count": ({"rtol": (1e-3,), "y0": PAIR}, ValueError, r"rtol has a tuple of 1, where the state has .* 2"),
    "no tolerance": ({"rtol": 0.0, "atol": 0.0}, ValueError, r"rtol and atol must not both be zero"),
    # options
    "first_step": ({"options": {"first_step": 0.0}}, ValueError, r"options\['first_step'\] must be positive; got 0"),
    "min_step": ({"options": {"min_step": -1.0}}, ValueError, r"options\['min_step'\] must be at least 0; got -1"),
    "limits": (
        {"options": {"min_step": 0.2, "max_step": 0.1}},
        ValueError,
        r"options\['min_step'\] = 0.2 is larger than options\['max_step'\] = 0.1",
    ),
    "max_step": ({"options": {"max_step": NAN}}, ValueError, r"options\['max_step'\] must be positive; got nan"),
    "safety": ({"options": {"safety": -0.9}}, ValueError, r"options\['safety'\] must be positive"),
    "max_num_steps": ({"options": {"max_num_steps": 0}}, ValueError, r"options\['max_num_steps'\] must be positive"),
    "controller": (
        {"options": {"controller": "pd"}},
        ValueError,
        r"'controller'\] must be 'i', 'pi', 'pid', 'predictive' or an object",
    ),
    "controller object": ({"options": {"controller": 0.3}}, TypeError, r"'controller'\] must be.*'factor'"),
    "stepper class": ({"method": qj.Stepper}, ValueError, r"is not known.*based on qj.Stepper"),
    "shared times": ({"options": {"step_t": [0.5], "jump_t": [0.5]}}, ValueError, r"must not share times"),
    "step_size": ({"method": "rk4", "options": {"step_size": 0.0}}, ValueError, r"'step_size'\] must be positive"),
    "interp": ({"method": "rk4", "options": {"interp": "cubc"}}, ValueError, r"'interp'\] must be one of cubic"),
    "two grids": (
        {"method": "rk4", "options": {"step_size": 1.0, "grid_constructor": lambda f, y, t: t}},
        ValueError,
        r"options\['step_size'\] or options\['grid_constructor'\], not both",
    ),
    "grid short": (
        {"method": "rk4", "options": {"grid_constructor": lambda f, y, t: t / 2}},
        ValueError,
        r"options\['grid_constructor'\] must return strictly monotone times.*from 0 to 0.5",
    ),
    "max_order": (
        {"method": "implicit_adams", "options": {"max_order": 13}},
        ValueError,
        r"'max_order'\] must be from 2 to 12",
    ),
    "eta": ({"method": "alf", "options": {"eta": 0.5}}, ValueError, r"options\['eta'\].*0.5"),
    "scipy": ({"method": "scipy_solver", "options": {"solver": "LSODE"}}, ValueError, r"Did you mean 'LSODA'"),
    # events
    "event times": ({"event_fn": lambda t, y: t, "t": (0.0, 1.0, 2.0)}, ValueError, r"With event_fn.*got 3 times"),
    "event at start": ({"event_fn": lambda t, y: t}, SolveError, r"zero at the initial time t = 0"),
    "event per sample": ({"event_fn": lambda t, y: t, "t": ROWS}, ValueError, r"event_fn needs times shared by"),
    # times per sample
    "batch": ({"t": ROWS, "y0": (1.0, 2.0, 3.0)}, ValueError, r"t has times for 2 samples.*got \(3,\)"),
    "no batch": ({"t": ROWS, "y0": torch.tensor(1.0)}, ValueError, r"t has times for 2 samples.*got \(\)"),
    "no batch in a tuple": (
        {"t": ROWS, "y0": (torch.ones(2, 1), torch.tensor(1.0))},
        ValueError,
        r"t has times for 2 samples.*got \(\)",
    ),
    "one column": ({"t": ROWS[:, :1]}, ValueError, r"at least two columns"),
    "row up and down": ({"t": torch.tensor([[0.0, 1], [1, 1]])}, ValueError, r"t\[1\] must be strictly increasing"),
    "padding inside": ({"t": torch.tensor([[0.0, 1, 2], [0, NAN, 1]])}, ValueError, r"t\[1\] has NaN between times"),
    "padding first": ({"t": torch.tensor([[0.0, 1], [NAN, 1]])}, ValueError, r"the first column has no padding"),
    # nothing to solve
    "empty batch": ({"t": torch.empty(0, 2), "y0": torch.empty(0, 3)}, ValueError, r"times per sample.*shape \(0, 3\)"),
    "empty independent": (
        {"y0": torch.empty(0, 3), "independent": True},
        ValueError,
        r"independent=True needs a state",
    ),
    "empty implicit": ({"y0": torch.empty(3, 0), "method": "kvaerno5"}, ValueError, r"kvaerno5' needs a.*\(3, 0\)"),
    # combinations
    "discrete": ({"method": "explicit_adams", "gradient": "discrete"}, ValueError, r"'discrete'.*explicit_adams"),
    "reversible": ({"method": "dopri5", "gradient": "reversible"}, ValueError, r"needs method='alf'"),
    "direct": ({"method": "scipy_solver", "gradient": "direct"}, ValueError, r"gradient='direct'.*scipy_solver.*'gq'"),
}


def refuse(case: str) -> Exception | None:
    """The exception that a wrong input ends in, or None if it is taken."""
    arguments, _, _ = BAD_INPUT[case]
    y0 = arguments.get("y0", (1.0, 2.0))
    if case in ("discrete", "reversible", "direct"):
        y0 = torch.ones(2, requires_grad=True)
    try:
        solve(**{**arguments, "y0": y0})
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_refused(case: str) -> None:
    _, exception, pattern = BAD_INPUT[case]
    error = refuse(case)
    assert isinstance(error, exception), repr(error)
    assert re.search(f"(?s){pattern}", str(error)), error


def singular(t: Tensor, y: Tensor) -> Tensor:
    return y**2  # from 1 it reaches infinity at t = 1


def chattering(t: Tensor, y: Tensor) -> Tensor:
    return -torch.sign(y) * 1e3  # slides along y = 0, which no explicit step can follow


FAILED: dict[str, tuple[dict[str, Any], type[SolveError], str]] = {
    "blow-up": (
        {"f": singular, "y0": torch.ones(1, dtype=torch.float64), "t": (0.0, 2.0), "rtol": 1e-8, "atol": 1e-8},
        StepSizeUnderflowError,
        r"step size fell to \S+ at t = (1|0\.99999).*rtol/atol.*jump_t.*method='kvaerno5'",
    ),
    "discontinuity": (
        {"f": chattering, "y0": torch.ones(1, dtype=torch.float64), "options": {"max_num_steps": 200}},
        TooManyStepsError,
        r"200 steps were not enough: the solve got to t = 0\.00\d+ of 1 with step size \S+\. Raise",
    ),
    "f NaN": ({"f": lambda t, y: y * NAN}, NonFiniteStateError, r"not finite at the initial time t = 0"),
    "f NaN, first step given": (
        {"f": lambda t, y: y * NAN, "options": {"first_step": 0.1}},
        NonFiniteStateError,
        r"not finite at t = 0 \(step size 0.1\)",
    ),
    "f NaN on the way": (
        {"f": lambda t, y: torch.log(0.5 - t) * y},
        NonFiniteStateError,
        r"not finite at t = 0\.(4999|5)\S* \(step size",
    ),
    "fixed steps": (
        {"f": lambda t, y: -1e4 * y, "t": (0.0, 20.0), "method": "euler", "options": {"step_size": 0.01}},
        NonFiniteStateError,
        r"state is not finite at t = \S+.*step_size",
    ),
    "too many": (
        {"options": {"max_num_steps": 3, "max_step": 0.1}},
        TooManyStepsError,
        r"3 steps were not enough: the solve got to t = 0\.\d+ of 1 with step size 0\.\d+.*max_num_steps",
    ),
    "SciPy": (
        {
            "f": singular,
            "y0": torch.ones(1, dtype=torch.float64),
            "t": (0.0, 2.0),
            "method": "scipy_solver",
            "options": {"solver": "RK45"},
        },
        StepSizeUnderflowError,
        r"SciPy's RK45 stopped at t = (1|0\.99)",
    ),
}


@pytest.mark.parametrize("gradient", ["direct", "discrete", "gq", "adjoint"])
@pytest.mark.parametrize("case", FAILED)
def test_failed_solves_say_where_and_what_to_try(case: str, gradient: str) -> None:
    arguments, exception, pattern = FAILED[case]
    if case == "SciPy" and gradient in ("direct", "discrete"):
        pytest.skip("SciPy's solvers do not have these gradients")
    with pytest.raises(exception, match=f"(?s){pattern}"):
        solve(**arguments, gradient=gradient)


def test_messages_reach_the_user_from_within_backward() -> None:
    """A gradient that is not finite is said to be so, and no step size is blamed."""
    y0 = torch.ones(2, requires_grad=True)
    ys = solve(y0=y0, gradient="gq")
    with pytest.raises(SolveError, match="gradient of the loss"):
        (ys * NAN).sum().backward()


@pytest.mark.parametrize("wrap", [lambda f: f, torch.no_grad()(lambda f: f)])
def test_errors_of_the_user_are_passed_on(wrap: Callable[..., Any]) -> None:
    def f(t: Tensor, y: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        solve(f=wrap(f))
