"""Events: their times, the states there, and gradients through both, against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torchdiffeq
from torch import Tensor, nn

import problems
import quadjoint as qj
from quadjoint import torchdiffeq as dropin
from quadjoint.errors import NonFiniteStateError
from quadjoint.solver.control import StepSettings

GRADIENTS = ["direct", "discrete", "gq", "adjoint"]
DTYPE = torch.float64


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=DTYPE, requires_grad=True)


class Fall(nn.Module):
    """A body with height and velocity as one tensor or as a tuple; it hits the ground where the height is zero."""

    def __init__(self, tuples: bool = False) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.tensor(9.81, dtype=DTYPE))
        self.tuples = tuples

    def forward(self, t: Tensor, y: Any) -> Any:
        if self.tuples:
            return y[1], -self.g.expand_as(y[1])
        return torch.stack([y[1], -self.g])

    def state(self, height: Tensor, velocity: Tensor) -> Any:
        return (height.reshape(1), velocity.reshape(1)) if self.tuples else torch.stack([height, velocity])

    def ground(self, t: Tensor, y: Any) -> Tensor:
        return y[0]

    def exact(self, height: Tensor, velocity: Tensor, t0: Tensor, backwards: bool = False) -> tuple[Tensor, Tensor]:
        """Time and velocity at the ground."""
        root = torch.sqrt(velocity**2 + 2 * self.g * height)
        duration = (velocity - root if backwards else velocity + root) / self.g
        return t0 + duration, velocity - self.g * duration


def hit(fall: Fall, height: Tensor, velocity: Tensor, t0: Tensor, backwards: bool = False, **arguments: Any) -> Any:
    """Time and velocity at the ground by a solve."""
    t = torch.stack([t0, t0.detach() + (-1.0 if backwards else 1.0)])
    time, ys = qj.odeint(fall, fall.state(height, velocity), t, event_fn=fall.ground, **arguments)
    assert len(problems.parts(ys)[0]) == 2  # the states at the start and at the event
    return time, (ys[1][-1, 0] if fall.tuples else ys[-1, 1])


METHODS: dict[str, dict[str, Any]] = {
    "dopri5": {},
    "tsit5": {},
    "dopri8": {},
    "bosh3": {},
    "adaptive_heun": {},
    "rk4": {"step_size": 0.1},
    "midpoint": {"step_size": 0.1},
    "explicit_adams": {"step_size": 0.1, "max_order": 4},
    "alf": {},
    "scipy_solver": {"solver": "RK45"},
}


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_time_and_velocity_of_a_falling_body(method: str, backwards: bool) -> None:
    """Two derivatives are constant, so that every method of order two is exact and its dense output too."""
    fall = Fall()
    height, velocity, t0 = scalar(10.0), scalar(2.0), scalar(0.5)
    with torch.no_grad():
        arguments = {"method": method, "options": METHODS[method], "rtol": 1e-7, "atol": 1e-7, "gradient": "direct"}
        time, speed = hit(fall, height, velocity, t0, backwards, **arguments)
        exact_time, exact_speed = fall.exact(height, velocity, t0, backwards)
    assert time.shape == () and time.dtype == DTYPE
    assert time.item() == pytest.approx(exact_time.item(), abs=1e-7)
    assert speed.item() == pytest.approx(exact_speed.item(), abs=1e-6)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("tuples", [False, True])
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_gradients_through_time_and_state(method: str, gradient: str, tuples: bool, backwards: bool) -> None:
    fall = Fall(tuples)
    found = []
    for solve in (partial(hit, fall, method=method, gradient=gradient, options=METHODS[method]), fall.exact):
        height, velocity, t0 = scalar(10.0), scalar(2.0), scalar(0.5)
        time, speed = solve(height, velocity, t0, backwards=backwards)
        for part in (time, speed, time * speed):
            found.append(
                torch.autograd.grad(part, (height, velocity, t0, fall.g), retain_graph=True, allow_unused=True)
            )
    for ours, exact in zip(found[:3], found[3:], strict=True):
        for a, b in zip(ours, exact, strict=True):
            assert (0.0 if a is None else float(a)) == pytest.approx(0.0 if b is None else float(b), abs=2e-6)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_bouncing_ball(gradient: str) -> None:
    """Three bounces with restitution 0.8, each from a new solve: the last time in closed form and its gradients."""
    fall, restitution, gradients = Fall(tuples=True), 0.8, []
    for closed_form in (False, True):
        height, speed0 = scalar(5.0), torch.zeros((), dtype=DTYPE)
        lift = scalar(0.0)
        if closed_form:
            time, speed = fall.exact(height + lift, speed0, torch.zeros((), dtype=DTYPE))
            for _ in range(2):
                time, speed = time + 2 * (-restitution * speed) / fall.g, restitution * speed
        else:
            time, state = torch.zeros((), dtype=DTYPE), ((height + lift).reshape(1), speed0.reshape(1))
            for _ in range(3):
                t = torch.stack([time, time.detach() + 1])
                time, ys = qj.odeint(fall, state, t, event_fn=fall.ground, rtol=1e-9, atol=1e-9, gradient=gradient)
                # The ball leaves the ground from where it is; its height there is zero to the tolerance of the event.
                state = (ys[0][-1] - ys[0][-1].detach() + 1e-9, -restitution * ys[1][-1])
            speed = ys[1][-1, 0]
        slopes = torch.autograd.grad(time + speed, (height, fall.g), retain_graph=True)
        gradients.append([x.item() for x in (time, speed, *slopes)])
    assert gradients[0] == pytest.approx(gradients[1], rel=1e-6)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_the_first_of_several_events_ends_the_solve(gradient: str) -> None:
    """y = y0 exp(t) per entry, each with its own threshold: the first to reach it decides time and gradient."""
    y0 = torch.tensor([1.0, 2.0, 3.0], dtype=DTYPE, requires_grad=True)
    limits = torch.tensor([8.0, 5.0, 90.0], dtype=DTYPE)
    t = torch.tensor([0.0, 1.0], dtype=DTYPE)
    time, ys = qj.odeint(
        lambda t, y: y, y0, t, event_fn=lambda t, y: limits - y, rtol=1e-9, atol=1e-9, gradient=gradient
    )
    assert time.item() == pytest.approx(math.log(5.0 / 2.0), abs=1e-8)
    (found,) = torch.autograd.grad(time, y0, retain_graph=True)
    assert found.tolist() == pytest.approx([0.0, -1 / 2, 0.0], abs=1e-7)
    (found,) = torch.autograd.grad(ys[-1, 2], y0)  # y2 = y0[2] * 5 / y0[1]
    assert found.tolist() == pytest.approx([0.0, -3 * 5 / 4, 5 / 2], abs=1e-6)


@pytest.mark.parametrize("m", [1.3, 30.0])
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_events_before_and_after_the_second_time(method: str, gradient: str, m: float) -> None:
    """The second time gives the direction only. With y = a exp(k t) up to y = m and z' = y cos 5t, z is elementary."""
    found = []
    for closed_form in (False, True):
        a, k = scalar(1.0), scalar(1.0)
        if closed_form:
            end = torch.log(m / a) / k
            z = (m * (k * torch.cos(5 * end) + 5 * torch.sin(5 * end)) - a * k) / (k**2 + 25)
        else:
            _, ys = qj.odeint(
                lambda t, y, k=k: torch.stack([k * y[0], y[0] * torch.cos(5 * t)]),
                torch.stack([a, torch.zeros_like(a)]),
                torch.tensor([0.0, 1.0], dtype=DTYPE),
                method=method,
                event_fn=lambda t, y: y[0] - m,
                gradient=gradient,
                rtol=1e-9,
                atol=1e-9,
                options={"step_size": 0.02} if method == "rk4" else None,
            )
            z = ys[-1, 1]
        found.append([x.item() for x in (z, *torch.autograd.grad(z, (a, k), retain_graph=True))])
    assert found[0] == pytest.approx(found[1], abs=1e-5)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_events_with_parameters_and_in_time(gradient: str) -> None:
    """exp(t) reaches m where t = log m, hence dt/dm = 1/m; an event in t alone has its time there."""
    m = scalar(4.0)
    y0, t = torch.ones(1, dtype=DTYPE, requires_grad=True), torch.tensor([0.0, 1.0], dtype=DTYPE)
    solve = partial(qj.odeint, lambda t, y: y, y0, t, rtol=1e-9, atol=1e-9, gradient=gradient)
    time, _ = solve(event_fn=lambda t, y: y - m)
    assert torch.autograd.grad(time, m)[0].item() == pytest.approx(1 / 4, abs=1e-7)
    time, ys = solve(event_fn=lambda t, y: t - 0.7)
    assert time.item() == pytest.approx(0.7, abs=1e-8)
    assert torch.autograd.grad(ys[-1].sum(), y0)[0].item() == pytest.approx(math.exp(0.7), rel=1e-6)


@pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("tuples", [False, True])
def test_agreement_with_torchdiffeq(tuples: bool, backwards: bool, interface: str) -> None:
    found = []
    for module in (dropin, torchdiffeq):
        fall = Fall(tuples)
        height, velocity, t0 = scalar(3.0), scalar(1.0), scalar(0.2)
        time, ys = module.odeint_event(
            fall,
            fall.state(height, velocity),
            t0,
            event_fn=fall.ground,
            reverse_time=backwards,
            odeint_interface=getattr(module, interface),
        )
        assert [part.shape[0] for part in problems.parts(ys)] == [2] * len(problems.parts(ys))
        loss = time + time**2 + sum(part[-1].sum() for part in problems.parts(ys))
        gradients = torch.autograd.grad(loss, (height, velocity, fall.g))
        found.append([x.item() for x in (time, loss, *gradients)])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_odeint_event_is_differentiable_in_its_start() -> None:
    fall, t0 = Fall(), scalar(0.2)
    time, _ = dropin.odeint_event(fall, fall.state(scalar(3.0), scalar(1.0)), t0, event_fn=fall.ground)
    assert torch.autograd.grad(time, t0)[0].item() == pytest.approx(1.0, abs=1e-6)
    plain, _ = dropin.odeint_event(fall, fall.state(scalar(3.0), scalar(1.0)), 0.2, event_fn=fall.ground)
    assert plain.item() == pytest.approx(time.item(), abs=1e-9)


def test_a_solution_knows_its_event() -> None:
    fall = Fall()
    sol = qj.solve(fall, fall.state(scalar(3.0), scalar(1.0)), torch.tensor([0.0, 1.0]), event_fn=fall.ground)
    assert sol.event_time is not None
    assert sol(sol.event_time.detach())[0].item() == pytest.approx(0.0, abs=1e-5)
    assert problems.error(sol(sol.event_time.detach()), sol.ys[-1]) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_events_in_other_dtypes(dtype: torch.dtype) -> None:
    """y = exp(i t) or a real rotation: its real part is zero first at pi / 2."""
    if dtype.is_complex:
        y0, f, event = torch.ones(1, dtype=dtype), lambda t, y: 1j * y, lambda t, y: y.real
    else:
        y0, event = torch.tensor([1.0, 0.0]), lambda t, y: y[0]

        def f(t: Tensor, y: Tensor) -> Tensor:
            return torch.stack([-y[1], y[0]])

    time, ys = qj.odeint(f, y0, torch.tensor([0.0, 1.0]), event_fn=event, rtol=1e-6, atol=1e-6)
    assert ys.dtype == dtype and time.item() == pytest.approx(math.pi / 2, abs=1e-4)


def test_stationary_events_have_no_gradient() -> None:
    """(t - 1)^2 - 0 touches zero without crossing; y does not change, so its event time cannot be differentiated."""
    y0 = torch.ones(1, dtype=DTYPE, requires_grad=True)
    touch: Callable[..., Tensor] = lambda t, y: torch.where(t < 0.5, 1.0, -1.0) * y  # noqa: E731
    with pytest.raises(ZeroDivisionError, match="stationary"):
        qj.odeint(lambda t, y: 0 * y, y0, torch.tensor([0.0, 1.0], dtype=DTYPE), event_fn=touch, gradient="direct")


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_fixed_steps_that_blow_up_before_an_event_end_with_an_error(sign: float) -> None:
    """Whether the event function becomes NaN or infinite."""
    y0, t = torch.ones(1, dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    with pytest.raises(NonFiniteStateError, match=r"not finite at t = \d\.\d+, before the event"):
        qj.odeint(
            lambda t, y: sign * y * y,
            sign * y0,
            t,
            method="rk4",
            event_fn=lambda t, y: y + sign,
            options={"step_size": 0.1, "max_num_steps": 1000},
        )


def test_an_open_end_is_given_up_on_a_grid_too(monkeypatch: pytest.MonkeyPatch) -> None:
    y0, t = torch.ones(1, dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    limited = partial(StepSettings, max_num_steps=50)
    monkeypatch.setattr("quadjoint.solver.methods.catalogue.StepSettings", limited)
    settings: dict[str, Any] = {"method": "rk4", "event_fn": lambda t, y: y + 1.0}
    with pytest.raises(qj.SolveError, match="did not come within 50 steps"):
        qj.odeint(lambda t, y: -y, y0, t, options={"step_size": 0.1}, **settings)
    qj.odeint(lambda t, y: -y, y0, t, options={"step_size": 0.01, "horizon": 1.0}, **settings)
