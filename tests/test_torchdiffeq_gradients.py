"""Gradients of the drop-in: those of torchdiffeq, and the settings of torchdiffeq's adjoint."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torchdiffeq
from torch import Tensor

import problems
import quadjoint as qj
from quadjoint import torchdiffeq as dropin
from quadjoint.errors import forget_warnings

TIMES = torch.tensor([0.2, 0.5, 0.61, 1.3, 1.7], dtype=torch.float64)


@pytest.fixture(autouse=True)
def _warnings_speak_again() -> Iterator[None]:
    forget_warnings()
    yield
    forget_warnings()


@pytest.mark.parametrize("method", ["dopri5", "rk4", "explicit_adams"])
@pytest.mark.parametrize("name", ["odeint", "odeint_adjoint"])
@pytest.mark.parametrize("problem_name", ["growth", "linear", "oscillator"])
def test_gradients_are_those_of_torchdiffeq(problem_name: str, name: str, method: str) -> None:
    problem = problems.PROBLEMS[problem_name]()
    settings: dict[str, Any] = {"method": method, "rtol": 1e-8, "atol": 1e-8}
    if method == "explicit_adams":
        settings["options"] = {"max_order": 6}
    t = TIMES if method == "dopri5" else torch.linspace(0.2, 1.7, 61, dtype=torch.float64)
    ours, theirs = (
        problems.gradients(problem, lambda y0, t, m=m: getattr(m, name)(problem, y0, t, **settings), t)
        for m in (dropin, torchdiffeq)
    )
    assert problems.agree(ours, problems.gradients(problem, problem.exact, t), 1e-4)
    if (name, method) == ("odeint", "explicit_adams"):
        # torchdiffeq takes the weights for constant, although they depend on the times that are differentiated.
        at = len(problems.parts(problem.y0))
        theirs[at] = ours[at]
    assert problems.agree(ours, theirs, 1e-4)


def test_parameters_of_plain_callables_are_found() -> None:
    w = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    y0 = torch.ones(1, dtype=torch.float64)
    t = torch.tensor([0.0, 1.0], dtype=torch.float64)
    (found,) = torch.autograd.grad(dropin.odeint_adjoint(lambda t, y: w * y, y0, t)[-1].sum(), w)
    assert float(found) == pytest.approx(math.exp(0.5), rel=1e-6)
    given = dropin.odeint_adjoint(lambda t, y: w * y, y0, t, adjoint_params=(p for p in [w]))
    assert torch.allclose(torch.autograd.grad(given[-1].sum(), w)[0], found, rtol=1e-9)


@pytest.mark.parametrize(
    "arguments",
    [
        {"adjoint_rtol": 1e-3},
        {"adjoint_atol": 1e-3},
        {"adjoint_method": "bosh3"},
        {"adjoint_options": {"norm": "seminorm"}},
    ],
)
def test_adjoint_settings_without_effect_are_mentioned_once(arguments: dict[str, Any]) -> None:
    problem = problems.Growth()
    with pytest.warns(qj.QuadjointWarning, match=f"{next(iter(arguments))} has no effect with gradient='discrete'"):
        dropin.odeint_adjoint(problem, problem.y0, TIMES, **arguments)
    dropin.odeint_adjoint(problem, problem.y0, TIMES, **arguments)  # warnings are errors here


def test_adjoint_settings_that_repeat_the_forward_ones_are_fine() -> None:
    problem = problems.Growth()
    dropin.odeint_adjoint(problem, problem.y0, TIMES, rtol=1e-5, adjoint_rtol=1e-5, adjoint_method="dopri5")


def test_tolerances_of_the_backward_solve_may_be_tuples() -> None:
    problem = problems.Oscillator()
    exact = problems.gradients(problem, problem.exact, TIMES)
    settings: dict[str, Any] = {"rtol": (1e-8, 1e-9), "adjoint_rtol": (1e-8, 1e-9), "gradient": "adjoint"}
    found = problems.gradients(problem, lambda y0, t: dropin.odeint_adjoint(problem, y0, t, **settings), TIMES)
    assert problems.agree(found, exact, 1e-6)


@pytest.mark.parametrize("gradient", ["adjoint", "seminorm", "gq", "gq-paper", "discrete", "direct", qj.Adjoint()])
def test_gradient_argument_selects_any_method(gradient: Any) -> None:
    problem = problems.Linear()
    exact = problems.gradients(problem, problem.exact, TIMES)

    def relative_error(**arguments: Any) -> float:
        found = problems.gradients(
            problem, lambda y0, t: dropin.odeint_adjoint(problem, y0, t, gradient=gradient, **arguments), TIMES
        )
        return max(float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True))

    tight = relative_error()
    assert tight < (1e-2 if gradient == "gq-paper" else 1e-5)
    if gradient in ("adjoint", "seminorm") or isinstance(gradient, qj.Gradient):
        # torchdiffeq's tolerances and method of the backward solve apply.
        assert relative_error(adjoint_rtol=1e-2, adjoint_atol=1e-2) > 3 * tight
        assert relative_error(adjoint_method="euler", adjoint_options={"step_size": 0.05}) > 1e-3


def test_custom_adjoint_norm_sees_torchdiffeqs_state() -> None:
    problem = problems.Oscillator()
    seen = []

    def norm(parts: tuple[Tensor, ...]) -> Tensor:
        seen.append([tuple(part.shape) for part in parts])
        return torch.stack([part.abs().max() for part in parts]).max()

    for module, extra in ((dropin, {"gradient": "adjoint"}), (torchdiffeq, {})):
        ys = module.odeint_adjoint(problem, problem.y0, TIMES, adjoint_options={"norm": norm}, **extra)
        problems.loss(ys).backward()
    assert seen[0] == seen[-1]
    with pytest.warns(qj.QuadjointWarning, match="no effect with gradient='gq'"):
        dropin.odeint_adjoint(problem, problem.y0, TIMES, adjoint_options={"norm": norm}, gradient="gq")


def test_stored_trajectories_on_torchdiffeqs_default_grid() -> None:
    """torchdiffeq's fixed grids interpolate linearly, which must not be what the backward pass sees."""
    problem = problems.Growth()
    t = torch.linspace(0.2, 1.7, 31, dtype=torch.float64)
    exact = problems.gradients(problem, problem.exact, t)
    found = problems.gradients(
        problem, lambda y0, t: dropin.odeint_adjoint(problem, y0, t, method="rk4", gradient="gq"), t
    )
    assert problems.agree(found, exact, 1e-6)


def test_adjoint_params_are_the_only_ones_differentiated_in() -> None:
    """Of a module's parameters, those that are not given get no gradient, as in torchdiffeq."""
    found = {}
    for module in (torchdiffeq, dropin):
        problem = problems.Linear()
        problem.extra = torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
        field = problem.forward
        problem.forward = lambda t, y, field=field, p=problem: field(t, y) * p.extra
        y0 = problem.y0.clone().requires_grad_()
        ys = module.odeint_adjoint(problem, y0, TIMES, adjoint_params=(problem.extra,))
        problems.loss(ys).backward()
        found[module] = [y0.grad, *(p.grad for p in problem.parameters())]
        none = module.odeint_adjoint(problem, problem.y0, TIMES, adjoint_params=())
        assert not none.requires_grad
    for ours, theirs in zip(found[dropin], found[torchdiffeq], strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.allclose(ours, theirs, rtol=1e-5)
    assert sum(g is None for g in found[dropin]) == len(list(problems.Linear().parameters()))
