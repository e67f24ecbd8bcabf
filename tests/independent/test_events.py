"""Events of each sample's own: times, states and gradients against closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from independent.helpers import DTYPE

NAN = float("nan")


def fall(t: Tensor, y: Tensor) -> Tensor:
    """Height and velocity of balls under unit gravity."""
    return torch.stack([y[:, 1], -torch.ones_like(y[:, 1])], dim=1)


def height(t: Tensor, y: Tensor) -> Tensor:
    return y[:, 0]


def thrown(*upwards: float) -> Tensor:
    """Balls at height zero with velocities."""
    return torch.tensor([[0.0, v] for v in upwards], dtype=DTYPE)


def until(end: float) -> Tensor:
    return torch.tensor([0.0, end], dtype=DTYPE)


@pytest.mark.parametrize("gradient", ["direct", "discrete", "gq"])
def test_a_thousand_falling_balls(gradient: str) -> None:
    """Their times and velocities at the ground, and the gradients of both in height, velocity and gravity."""
    generator = torch.Generator().manual_seed(0)
    h, v, g = (torch.rand(1000, dtype=DTYPE, generator=generator) * 4 + 1 for _ in range(3))
    h, v, g = (x.requires_grad_() for x in (h, v - 3.0, g))
    sol = qj.solve(
        lambda t, y: torch.stack([y[:, 1], -g], dim=1),
        torch.stack([h, v], dim=1),
        until(50.0),
        event_fn=height,
        independent=True,
        gradient=gradient,
        options={"event_tol": 1e-12},
    )
    time = (v + torch.sqrt(v**2 + 2 * g * h)) / g
    speed = v - g * time
    assert bool(sol.status.event.all()) and sol.event_time.shape == (1000,)
    torch.testing.assert_close(sol.event_time, time, rtol=0.0, atol=1e-9)
    torch.testing.assert_close(sol.ys[-1], torch.stack([torch.zeros_like(time), speed], dim=1), rtol=0.0, atol=1e-9)
    torch.testing.assert_close(sol.ts, torch.stack([torch.zeros_like(time), time], dim=1), rtol=0.0, atol=1e-9)
    weight = torch.randn(1000, dtype=DTYPE, generator=generator)
    for ours, exact in ((sol.event_time, time), (sol.ys[-1, :, 1], speed)):
        found = torch.autograd.grad((ours * weight).sum(), (h, v, g), retain_graph=True)
        right = torch.autograd.grad((exact * weight).sum(), (h, v, g), retain_graph=True)
        for a, b in zip(found, right, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_samples_without_an_event_end_at_the_horizon() -> None:
    """A ball that is thrown fast is still in the air; its status says so, and its last state is that at the horizon."""
    y0 = thrown(1.0, 10.0, 2.0).requires_grad_()
    end = until(5.0).requires_grad_()
    sol = qj.solve(fall, y0, end, event_fn=height, independent=True, options={"event_direction": "down"})
    assert [sol.status[b].name for b in range(3)] == ["EVENT", "LAST_TIME", "EVENT"]
    assert sol.event_index.tolist() == [0, -1, 0]
    torch.testing.assert_close(sol.event_time, torch.tensor([2.0, 5.0, 4.0], dtype=DTYPE), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(sol.status.t, sol.event_time, rtol=0.0, atol=0.0)
    torch.testing.assert_close(sol.ys[-1, 1], torch.tensor([37.5, 5.0], dtype=DTYPE), rtol=1e-8, atol=1e-8)
    in_y, in_t = torch.autograd.grad(sol.event_time.sum(), (y0, end), retain_graph=True)
    torch.testing.assert_close(in_y[:, 1], torch.tensor([2.0, 0.0, 2.0], dtype=DTYPE), rtol=1e-7, atol=1e-7)
    assert in_t[1] == 1.0  # of the sample that ends there
    (in_t,) = torch.autograd.grad(sol.ys[-1, :, 0].sum(), end)
    torch.testing.assert_close(in_t[1], torch.tensor(5.0, dtype=DTYPE), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("direction", "time"), [("up", 1.0), ("down", 3.0), ("both", 1.0)])
def test_two_crossings_in_one_step_are_found_in_order(direction: str, time: float) -> None:
    """A ball passes the height 1.5 at t = 1 going up and at t = 3 going down, within one step."""
    sol = qj.solve(
        fall,
        thrown(2.0),
        until(10.0),
        event_fn=lambda t, y: y[:, 0] - 1.5,
        independent=True,
        options={"event_direction": direction, "first_step": 8.0},
    )
    assert sol.stats.accepted_steps.tolist() == [1]
    assert float(sol.event_time[0]) == pytest.approx(time, abs=1e-7)


def test_an_event_at_the_initial_time_is_none_until_zero_is_left() -> None:
    """Balls that start on the ground: thrown up it comes when they fall down; one that stays there has none."""
    y0 = thrown(1.0, 3.0, 0.0)

    def f(t: Tensor, y: Tensor) -> Tensor:
        return fall(t, y) * torch.tensor([[1.0], [1.0], [0.0]], dtype=DTYPE)

    for direction, events in (("both", [2.0, 6.0]), ("down", [2.0, 6.0]), ("up", [9.0, 9.0])):
        sol = qj.solve(f, y0, until(9.0), event_fn=height, independent=True, options={"event_direction": direction})
        torch.testing.assert_close(sol.event_time, torch.tensor([*events, 9.0], dtype=DTYPE), rtol=1e-7, atol=1e-7)
        assert sol.status[2].name == "LAST_TIME"


def test_many_events_and_which_came() -> None:
    """The ground, the ceiling at 2 or a wall in time, whichever is first, for each ball."""
    y0 = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]], dtype=DTYPE)
    sol = qj.solve(
        fall,
        y0,
        until(9.0),
        event_fn=lambda t, y: torch.stack([y[:, 0], 2.0 - y[:, 0], 1.6 - t[:, 0]], dim=1),
        independent=True,
    )
    assert sol.event_index.tolist() == [0, 1, 2]
    exact = torch.tensor([math.sqrt(2.0), 2.0 - math.sqrt(2.0), 1.6], dtype=DTYPE)
    torch.testing.assert_close(sol.event_time, exact, rtol=1e-8, atol=1e-8)


def test_observations_stop_at_the_event() -> None:
    """Times past the end of a sample are NaN, and their gradients zero; the last state is that at the event."""
    t = torch.tensor([0.0, 1.0, 3.0, 5.0, 7.0], dtype=DTYPE)
    y0 = thrown(1.0, 2.0).requires_grad_()
    sol = qj.solve(fall, y0, t, event_fn=height, independent=True, options={"event_direction": "down"})
    assert torch.isnan(sol.ys[..., 0]).T.tolist() == [[False, False, True, True, False], [False] * 3 + [True, False]]
    assert torch.isnan(sol(4.5)[..., 0]).tolist() == [True, True]
    torch.testing.assert_close(sol.ys[1, :, 0], torch.tensor([0.5, 1.5], dtype=DTYPE), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(sol(1.0), sol.ys[1], rtol=1e-9, atol=1e-9)
    (found,) = torch.autograd.grad(sol.ys[..., 0].square().sum(), y0, retain_graph=True)
    assert bool(torch.isfinite(found).all())
    (exact,) = torch.autograd.grad((torch.nan_to_num(sol.ys[:-1, :, 0]) ** 2).sum(), y0)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6)


def test_backwards_in_time() -> None:
    """From t = 0 to the past: a ball in free fall was on the ground before, one sample goes forwards meanwhile."""
    rows = torch.tensor([[0.0, -9.0], [0.0, 9.0]], dtype=DTYPE)
    y0 = torch.tensor([[1.5, 1.0], [1.5, 1.0]], dtype=DTYPE)
    time, ys = qj.odeint(fall, y0, rows, event_fn=height, independent=True)
    torch.testing.assert_close(time, torch.tensor([-1.0, 3.0], dtype=DTYPE), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(ys[-1, :, 1], torch.tensor([2.0, -2.0], dtype=DTYPE), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("method", ["tsit5", "dopri8", "bosh3", "adaptive_heun"])
def test_every_method_finds_them(method: str) -> None:
    y0 = thrown(1.0, 4.0)
    time, _ = qj.odeint(
        fall, y0, until(9.0), event_fn=height, independent=True, method=method, options={"event_direction": "down"}
    )
    torch.testing.assert_close(time, torch.tensor([2.0, 8.0], dtype=DTYPE), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("gradient", ["direct", "discrete", "gq"])
def test_second_derivatives_of_event_times(gradient: str) -> None:
    """y' = -k y gets to y0 / 2 at log(2) / k, for two rates: d^2 t / dk^2 = 2 log(2) / k^3."""
    k = torch.tensor([[0.7], [9.0]], dtype=DTYPE, requires_grad=True)
    time, _ = qj.odeint(
        lambda t, y: -k * y,
        torch.ones(2, 1, dtype=DTYPE),
        until(5.0),
        event_fn=lambda t, y: y - 0.5,
        independent=True,
        rtol=1e-9,
        atol=1e-11,
        gradient=gradient,
    )
    (once,) = torch.autograd.grad(time.sum(), k, create_graph=True)
    (twice,) = torch.autograd.grad(once.sum(), k)
    torch.testing.assert_close(once, -math.log(2.0) / k**2, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(twice, (2 * math.log(2.0) / k**3).detach(), rtol=1e-5, atol=1e-7)


def test_parameters_of_the_event_function_alone() -> None:
    level = torch.tensor([0.25, 0.5, 2.0], dtype=DTYPE, requires_grad=True)
    time, _ = qj.odeint(
        lambda t, y: -y,
        torch.ones(3, dtype=DTYPE),
        until(9.0),
        event_fn=lambda t, y: y - level,
        independent=True,
        rtol=1e-8,
        atol=1e-10,
    )
    torch.testing.assert_close(time[:2], -torch.log(level[:2]), rtol=1e-7, atol=1e-7)
    (found,) = torch.autograd.grad(time.sum(), level)
    torch.testing.assert_close(found, torch.tensor([-4.0, -2.0, 0.0], dtype=DTYPE), rtol=1e-6, atol=1e-6)


def test_a_function_that_cannot_be_stacked() -> None:
    """Values at several points of a step come one after another if vmap fails."""

    def branching(t: Tensor, y: Tensor) -> Tensor:
        assert isinstance(y[0, 0].item(), float)
        return y[:, 0]

    time, _ = qj.odeint(fall, thrown(1.0), until(9.0), event_fn=branching, independent=True)
    assert float(time[0]) == pytest.approx(2.0, abs=1e-8)


WRONG: dict[str, tuple[Any, str]] = {
    "scalar": (lambda t, y: y.sum(), r"a row for each sample, shape \(2,\) or \(2, E\).*got \(\)"),
    "no tensor": (lambda t, y: 1.0, r"a row for each sample.*got float"),
    "transposed": (lambda t, y: y.T[:1], r"a row for each sample.*got \(1, 2\)"),
    "broadcast": (lambda t, y: y[:, 0] - t, r"depends on other samples. t has shape \(2, 1\).*write t\[:, 0\]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_event_functions_are_refused_in_words(case: str) -> None:
    event, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        qj.odeint(fall, thrown(1.0, 2.0), until(9.0), event_fn=event, independent=True)


def test_two_events_of_two_samples_are_no_mistake() -> None:
    time, _ = qj.odeint(
        fall,
        thrown(1.0, 2.0),
        until(9.0),
        event_fn=lambda t, y: torch.stack([y[:, 0], y[:, 0] - 1.5], 1),
        independent=True,
        options={"event_direction": "down"},
    )
    torch.testing.assert_close(time, torch.tensor([2.0, 3.0], dtype=DTYPE), rtol=1e-7, atol=1e-7)


def test_an_event_that_the_state_does_not_move_has_no_gradient() -> None:
    """A function of a state that stands still changes its sign only by a jump in time, where it has no slope."""
    y0 = torch.ones(2, 1, dtype=DTYPE, requires_grad=True)
    event = lambda t, y: torch.where(t > 1.0, -1.0, 1.0)[:, 0] * y[:, 0]  # noqa: E731
    with pytest.raises(ZeroDivisionError, match=r"of samples \[0, 1\] is stationary"):
        qj.odeint(lambda t, y: 0 * y, y0, until(2.0), event_fn=event, independent=True)


def test_an_event_at_the_end_of_a_step_is_there_whatever_is_rounded() -> None:
    """Of y' = v, y = v at t = 1, where rounding alone decides whether and in which part of a step it is seen."""
    v = torch.rand(4000, 1, generator=torch.Generator().manual_seed(0)) + 0.5
    sol = qj.solve(
        lambda t, y: v,
        torch.zeros(4000, 1),
        torch.tensor([0.0, 1.0]),
        independent=True,
        event_fn=lambda t, y: (y - v)[:, 0],
    )
    assert sol.status is not None and sol.event_time is not None
    assert float(sol.event_time[sol.status.event].min()) == pytest.approx(1.0, abs=1e-6)


# Steps that the batch shares ------------------------------------------------------------------------------------------


def test_a_shared_event_that_never_comes_speaks_of_the_event() -> None:
    with pytest.raises(qj.SolveError, match=r"The event did not come within 50 steps, up to t = .*options=\{'horizon'"):
        qj.odeint(
            lambda t, y: torch.cos(t) * y,
            torch.ones(1, dtype=DTYPE),
            until(1.0),
            event_fn=lambda t, y: y + 1.0,
            options={"max_num_steps": 50},
        )


@pytest.mark.parametrize(("method", "options"), [("dopri5", {}), ("rk4", {"step_size": 0.1})])
@pytest.mark.parametrize("gradient", ["direct", "discrete", "gq", "adjoint"])
def test_a_shared_event_has_a_horizon(method: str, options: dict[str, Any], gradient: str) -> None:
    y0 = torch.ones(1, dtype=DTYPE, requires_grad=True)

    def run(horizon: float) -> qj.Solution:
        return qj.solve(
            lambda t, y: -y,
            y0,
            until(1.0),
            event_fn=lambda t, y: y - 0.2,
            method=method,
            gradient=gradient,
            rtol=1e-8,
            atol=1e-8,
            options={"horizon": horizon, **options},
        )

    early, late = run(1.5), run(3.0)
    assert not bool(early.status.event) and bool(late.status.event)
    assert early.event_time.item() == 1.5 and late.event_time.item() == pytest.approx(math.log(5.0), abs=1e-4)
    assert early.ys[-1].item() == pytest.approx(math.exp(-1.5), abs=1e-5)
    (found,) = torch.autograd.grad(early.ys[-1].sum(), y0)
    assert float(found) == pytest.approx(math.exp(-1.5), abs=1e-5)


def test_a_shared_vector_event_says_for_which_sample() -> None:
    rates = torch.tensor([0.5, 3.0, 1.0], dtype=DTYPE)
    sol = qj.solve(lambda t, y: -rates * y, torch.ones(3, dtype=DTYPE), until(1.0), event_fn=lambda t, y: y - 0.5)
    assert sol.event_index == (1,)
    scalar = qj.solve(lambda t, y: -rates * y, torch.ones(3, dtype=DTYPE), until(1.0), event_fn=lambda t, y: y[2] - 0.5)
    assert scalar.event_index == ()


@pytest.mark.parametrize(("first", "span"), [(0.0, 0.1), (1.7e9, 30.0)])
def test_a_horizon_is_as_precise_as_the_times(first: float, span: float) -> None:
    sol = qj.solve(
        lambda t, y: -y / span,
        torch.ones(1, dtype=DTYPE),
        torch.tensor([first, first + 2 * span], dtype=DTYPE),
        event_fn=lambda t, y: y + 1.0,
        options={"horizon": first + span},
    )
    assert sol.event_time is not None and sol.event_time.item() == first + span
    assert sol.ts[-1].item() == first + span and float(sol.ys[-1]) == pytest.approx(math.exp(-1.0), rel=1e-3)
