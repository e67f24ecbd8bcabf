"""What torchdiffeq's own tests ask of the drop-in, and which of the two is right where they differ.

``benchmarks/torchdiffeq_suite.py`` runs those tests; ``docs/migrating.md`` has its result.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torchdiffeq
from torch import Tensor, nn

import problems
import quadjoint as qj
from quadjoint import torchdiffeq as dropin
from quadjoint.errors import forget_warnings

TIMES = torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64)
CALLBACKS = ["callback_step", "callback_accept_step", "callback_reject_step"]


@pytest.fixture(autouse=True)
def _warnings_speak_again() -> Iterator[None]:
    forget_warnings()
    yield
    forget_warnings()


class Decay(nn.Module):
    """y' = -w y, with parameters that have no part in it."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
        self.unused = nn.Linear(2, 3)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return -self.w * y


def with_callbacks(names: list[str]) -> tuple[Decay, list[str]]:
    """Dynamics with callbacks that note their names."""
    f, called = Decay(), []
    for name in names:
        setattr(f, name, lambda t, y, dt, name=name: called.append(name))
    return f, called


@pytest.mark.parametrize("method", ["explicit_adams", "dopri5", "rk4", "scipy_solver"])
def test_unused_parameters_get_zeros_from_odeint_adjoint(method: str) -> None:
    """As in torchdiffeq, whether they are found or given: DistributedDataParallel waits for every gradient."""
    y0 = torch.ones(2, dtype=torch.float64)
    for module in (torchdiffeq, dropin):
        for given in (False, True):
            f = Decay()
            settings: dict[str, Any] = {"adjoint_params": tuple(f.parameters())} if given else {}
            module.odeint_adjoint(f, y0, TIMES, method=method, **settings)[-1].sum().backward()
            assert f.w.grad is not None and f.w.grad != 0
            for p in f.unused.parameters():
                assert p.grad is not None and not p.grad.any(), (module.__name__, given)


@pytest.mark.parametrize("function", ["odeint", "odeint_adjoint", "odeint_event", "odeint_dense"])
@pytest.mark.parametrize(
    ("method", "silent"),
    [("rk4", CALLBACKS[1:]), ("implicit_adams", CALLBACKS[1:]), ("scipy_solver", CALLBACKS)],
)
def test_callbacks_that_a_method_does_not_have_are_mentioned(method: str, silent: list[str], function: str) -> None:
    """Those that torchdiffeq warns of; torchdiffeq itself has odeint_dense for one method and no events with SciPy."""
    y0 = torch.ones(2, dtype=torch.float64)
    settings: dict[str, Any] = {"method": method, "rtol": 1e-4, "atol": 1e-4}
    if function == "odeint_event":
        settings |= {"event_fn": lambda t, y: t - 0.3}
        settings |= {"options": {} if method == "scipy_solver" else {"step_size": 0.1}}
    times = {"odeint_event": (TIMES[0],), "odeint_dense": (TIMES[0], TIMES[-1])}.get(function, (TIMES,))
    for name in silent:
        f, _ = with_callbacks([name])
        with pytest.warns(qj.QuadjointWarning, match=f"never calls {name} with method '{method}'"):
            getattr(dropin, function)(f, y0, *times, **settings)


@pytest.mark.parametrize(("method", "names"), [("dopri5", CALLBACKS), ("rk4", CALLBACKS[:1])])
def test_callbacks_that_a_method_has_are_called_without_a_word(method: str, names: list[str]) -> None:
    found = []
    for module in (torchdiffeq, dropin):
        f, called = with_callbacks(names)
        module.odeint(f, torch.ones(2, dtype=torch.float64), TIMES, method=method)
        found.append(set(called))
    assert found[0] == found[1] >= {"callback_step"}


@pytest.mark.parametrize("gradient", [None, "adjoint", "gq"])
@pytest.mark.parametrize("method", ["dopri5", "rk4", "implicit_adams"])
def test_callbacks_of_the_backward_pass_are_refused_with_a_warning(method: str, gradient: str | None) -> None:
    f, called = with_callbacks([f"{name}_adjoint" for name in CALLBACKS])
    with pytest.warns(qj.QuadjointWarning, match="callback_step_adjoint, .*callback_reject_step_adjoint will not be"):
        ys = dropin.odeint_adjoint(f, torch.ones(2, dtype=torch.float64), TIMES, method=method, gradient=gradient)
    ys.sum().backward()
    assert called == []


def test_options_that_no_method_has_are_ignored_with_a_warning() -> None:
    problem = problems.Growth()
    for module in (torchdiffeq, dropin):
        for method, name in (("dopri5", "first_stp"), ("rk4", "stepsize")):
            plain = module.odeint(problem, problem.y0, TIMES, method=method)
            with pytest.warns(UserWarning, match=name) as said:
                ys = module.odeint(problem, problem.y0, TIMES, method=method, options={name: 0.01})
            assert torch.equal(ys, plain)
    assert "Did you mean 'step_size'?" in str(said[0].message)
    with pytest.warns(UserWarning, match="nonsense"):
        dropin.odeint(problem, problem.y0, TIMES, method="scipy_solver", options={"nonsense": 1})
    with pytest.raises(TypeError, match="options must be a dict; got list"):
        dropin.odeint(problem, problem.y0, TIMES, options=["first_step"])


def test_options_of_the_backward_solve_that_no_method_has_are_ignored_with_a_warning() -> None:
    problem = problems.Growth()
    exact = problems.gradients(problem, problem.exact, TIMES)
    with pytest.warns(qj.QuadjointWarning, match=r"\['safty'\] have no effect with method 'bosh3'.*'safety'"):
        settings: dict[str, Any] = {"adjoint_method": "bosh3", "adjoint_options": {"safty": 0.5}, "gradient": "adjoint"}
        found = problems.gradients(problem, lambda y0, t: dropin.odeint_adjoint(problem, y0, t, **settings), TIMES)
    assert problems.agree(found, exact, 1e-5)


@pytest.mark.parametrize("method", ["euler", "midpoint", "heun3"])
def test_the_adjoint_of_fixed_steps_across_a_jump_is_the_derivative_of_what_was_returned(method: str) -> None:
    """torchdiffeq's tests want f evaluated at t = 1 on the way back, where these methods have no stage.

    Its backward solve does so, and on a grid this coarse its gradient is not that of the states returned; the exact
    adjoint visits the times of the forward stages alone, and is.
    """
    visited: list[float] = []

    def f(t: Tensor, y: Tensor) -> Tensor:
        visited.append(float(t.detach()))
        return -0.5 * y if t < 0.5 else y**2

    y0 = torch.tensor([0.4, 0.7], dtype=torch.float64, requires_grad=True)
    t = torch.tensor([0.0, 1.0], dtype=torch.float64)
    settings: dict[str, Any] = {"method": method, "options": {"step_size": 0.5, "perturb": False}}

    def last(y: Tensor) -> float:
        with torch.no_grad():
            return float(torchdiffeq.odeint(f, y, t, **settings)[-1].sum())

    h = 1e-5 * torch.eye(2, dtype=torch.float64)
    differences = torch.tensor([(last(y0 + e) - last(y0 - e)) / 2e-5 for e in h], dtype=torch.float64)
    errors = {}
    for module in (torchdiffeq, dropin):
        ys = module.odeint_adjoint(f, y0, t, adjoint_params=(), **settings)
        forward = set(visited)
        visited.clear()
        (found,) = torch.autograd.grad(ys[-1].sum(), y0)
        errors[module] = float((found - differences).abs().max())
        assert (1.0 in visited) == (module is torchdiffeq)
        assert module is torchdiffeq or set(visited) <= forward
        visited.clear()
    assert errors[dropin] < 1e-9
    assert errors[torchdiffeq] > 1e-2


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("method", ["euler", "midpoint", "heun2", "heun3", "rk4"])
def test_fixed_steps_up_to_an_event_are_the_same_numbers(method: str, backwards: bool) -> None:
    """Steps of equal length from t[0] on, whatever t[1] is."""
    y0, t0 = torch.ones(1, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)
    settings: dict[str, Any] = {"method": method, "options": {"step_size": 0.3}, "reverse_time": backwards}
    level = 2.2 if backwards else 0.2

    def event(t: Tensor, y: Tensor) -> Tensor:
        return y.sum() - level

    ours, theirs = (
        module.odeint_event(lambda t, y: torch.cos(3 * t) - y, y0, t0, event_fn=event, **settings)
        for module in (dropin, torchdiffeq)
    )
    assert float(ours[0]) == pytest.approx(float(theirs[0]), abs=3e-9)
    assert problems.error(ours[1], theirs[1]) < 1e-8


@pytest.mark.parametrize("method", ["euler", "midpoint", "heun2", "heun3", "rk4"])
def test_a_step_rounds_the_state_once(method: str) -> None:
    """y' = c: the increment of a step is right to rounding of itself, so n steps err by n halves of a unit of y."""
    n, c = 200, 0.2
    t = torch.linspace(1.0, 3.0, n + 1, dtype=torch.float64)
    y0 = torch.tensor([3.2, 3.3, 3.4], dtype=torch.float32)
    ys = dropin.odeint(lambda t, y: torch.full_like(y, c), y0, t, method=method)
    unit = 2.0**-22  # of float32 between 2 and 4
    error = (ys[-1].double() - (y0.double() + c * 2.0)).abs().max()
    assert float(error) < 1.02 * n * unit / 2


def test_mentioned_once() -> None:
    """A training loop is not flooded."""
    f, _ = with_callbacks([*CALLBACKS, "callback_step_adjoint"])
    y0 = torch.ones(2, dtype=torch.float64)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            dropin.odeint_adjoint(f, y0, TIMES, method="rk4", options={"stepsize": 1.0})
    assert len(said) == 3  # the options, the callbacks forwards, those backwards
