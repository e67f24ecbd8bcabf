"""From errors to step sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import quadjoint as qj
from quadjoint.solver.control import AdaptiveControl, StepSettings
from quadjoint.solver.controllers import CONTROLLERS, controller_of

RATIOS = st.floats(1e-6, 1e6)
ORDERS = st.integers(1, 9)


@given(ratio=RATIOS, before=st.floats(1e-4, 1.0), order=ORDERS, safety=st.floats(0.5, 0.99))
def test_elementary_and_pi_control(ratio: float, before: float, order: int, safety: float) -> None:
    """To the last bit, as Hairer and Wanner have them; a step that was good is followed by none that is shorter."""
    history = (before, 0.3)
    beta = 0.4 / order
    elementary = safety * ratio ** (-1.0 / order)
    smooth = safety * ratio ** -(1.0 / order - 0.75 * beta) * before**beta
    least = 1.0 if ratio < 1.0 else 0.0
    for name, expected in (("i", elementary), ("pi", smooth)):
        found = CONTROLLERS[name].factor(ratio, history, order=order, safety=safety)
        assert found == max(expected, least), name


@given(
    p=st.floats(-0.3, 0.6),
    i=st.floats(0.1, 1.0),
    d=st.floats(0.0, 0.3),
    logs=st.tuples(*[st.floats(-5, 5)] * 2),
    order=ORDERS,
)
def test_what_the_coefficients_answer_to(p: float, i: float, d: float, logs: tuple[float, float], order: int) -> None:
    """On errors r, the factor answers to log r by i, to its first difference by p, to its second one by d."""
    if p + i + d <= 0.0:
        return
    level, slope = logs
    control = qj.PIDController(p, i, d)

    def answer(now: float, before: float, earlier: float) -> float:
        ratios = np.exp([now, before, earlier])
        return -order * np.log(control.factor(ratios[0], (ratios[1], ratios[2]), order=order, safety=1.0))

    assert answer(level, level, level) == pytest.approx(i * level, abs=1e-9)
    assert answer(level, level - slope, level - 2 * slope) == pytest.approx(i * level + p * slope, abs=1e-9)
    assert answer(level, level - slope, level - slope) == pytest.approx(i * level + (p + d) * slope, abs=1e-9)


@given(ratio=st.floats(1.0, 1e6, exclude_min=True), errors=st.tuples(st.floats(1e-4, 1.0), st.floats(1e-4, 1.0)))
@pytest.mark.parametrize("controller", ["i", "pi", "pid", qj.PIDController(p=-0.2, i=0.3, d=0.5)])
def test_another_attempt_is_shorter(controller: Any, ratio: float, errors: tuple[float, float]) -> None:
    control = AdaptiveControl(StepSettings(controller=controller_of(controller)), 5)
    control.history = errors
    assert control._factor(ratio) <= 0.9


@pytest.mark.filterwarnings("ignore:The problem .* seems to be stiff")
def test_pid_control_rejects_less_where_stability_limits_the_step() -> None:
    def f(t: Tensor, y: Tensor) -> Tensor:
        return -300 * (y - torch.cos(t))

    y0, t = torch.zeros(1, dtype=torch.float64), torch.tensor([0.0, 10.0], dtype=torch.float64)
    rejected = {
        name: qj.solve(f, y0, t, options={"controller": name}, gradient="direct").stats.rejected_steps
        for name in ("i", "pid")
    }
    assert rejected["pid"] < rejected["i"] / 2


@pytest.mark.parametrize("controller", ["i", "pi", "pid", qj.PIDController(p=0.3, i=0.3)])
def test_every_controller_keeps_the_tolerance(controller: Any) -> None:
    t = torch.linspace(0, 3, 4, dtype=torch.float64)
    ys = qj.odeint(
        lambda t, y: y * torch.cos(t),
        torch.ones(1).double(),
        t,
        rtol=1e-7,
        atol=1e-7,
        options={"controller": controller},
    )
    assert torch.allclose(ys[:, 0], torch.exp(torch.sin(t)), atol=1e-5)


def test_a_controller_of_ones_own() -> None:
    """One that changes nothing keeps the first step size; also the backward solve of the adjoint uses it."""

    class Constant:
        calls = 0

        def factor(
            self, ratio: float, history: tuple[float, float], *, order: int, safety: float, growth: float
        ) -> float:
            Constant.calls += 1
            assert ratio <= 1.0 and order == 5 and safety == 0.9
            return 1.0

    w = torch.ones(1, dtype=torch.float64, requires_grad=True)
    sol = qj.solve(
        lambda t, y: -w * y,
        torch.ones(1).double(),
        torch.tensor([0.0, 1.0]),
        gradient="adjoint",
        options={"controller": Constant(), "first_step": 0.125},
    )
    assert sol.stats.accepted_steps == 8
    before = Constant.calls
    sol.ys[-1].sum().backward()
    assert Constant.calls > before
    assert w.grad is not None and w.grad.item() == pytest.approx(-np.exp(-1), rel=1e-4)


@pytest.mark.parametrize("independent", [False, True])
def test_a_controller_with_nothing_but_factor_is_given_the_steps_before(independent: bool) -> None:
    """One that hands on to a controller with a memory, and says of itself only ``factor``, takes the same steps."""
    inner = qj.PIDController(p=0.3, i=0.4)

    class Handing:
        def factor(self, ratio: Any, history: Any, *, order: int, safety: float, growth: Any) -> Any:
            return inner.factor(ratio, history, order=order, safety=safety, growth=growth)

    found = [
        qj.odeint(
            lambda t, y: torch.cos(3 * t) * y,
            torch.tensor([[1.0], [2.0]], dtype=torch.float64),
            torch.linspace(0, 5, 4, dtype=torch.float64),
            rtol=1e-6,
            independent=independent,
            options={"controller": controller},
        )
        for controller in (inner, Handing())
    ]
    assert torch.equal(*found)


def test_coefficients_that_control_nothing() -> None:
    with pytest.raises(ValueError, match=r"needs p \+ i \+ d > 0"):
        qj.PIDController(p=0.1, i=0.0, d=-0.2)
