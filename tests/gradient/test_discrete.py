"""The discrete adjoint is the transpose of the forward solve: it equals backpropagation through it to rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from gradient.helpers import Driven, Network, gradients, loss, normal, relative, times
from quadjoint.solver.methods.catalogue import RUNGE_KUTTA

EQUAL = 1e-10
MODES = ("joint", "stacked")


class Bumpy(Driven):
    """Quiet, then suddenly fast: adaptive steps are rejected."""

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return super().forward(t, y) + 8.0 * torch.sin(20.0 * t) * torch.exp(-((6.0 * (t - 1.0)) ** 2)) * y


def settings(method: str, **options: Any) -> dict[str, Any]:
    if RUNGE_KUTTA[method].adaptive:
        return {"method": method, "rtol": 1e-4, "atol": 1e-4, "options": options}
    return {"method": method, "options": {"step_size": 0.13, **options}}


def observations(count: int) -> Tensor:
    return times(0.0, 2.0) if count == 1 else torch.linspace(0.0, 2.0, count + 1, dtype=torch.float64)


@pytest.mark.parametrize("count", [1, 2, 200])
@pytest.mark.parametrize("method", sorted(RUNGE_KUTTA))
def test_equals_direct_on_every_method_and_number_of_observations(method: str, count: int) -> None:
    f, y0, t = Driven(), normal(4, 3), observations(count)
    reference = gradients(f, y0, t, "direct", **settings(method))
    found = gradients(f, y0, t, "discrete", **settings(method))
    assert relative(found, reference) < EQUAL


@pytest.mark.parametrize("method", sorted(m for m in RUNGE_KUTTA if RUNGE_KUTTA[m].adaptive))
def test_equals_direct_where_steps_are_rejected(method: str) -> None:
    f, y0, t = Bumpy(), normal(4, 3), times(0.0, 0.5, 2.0)
    assert qj.solve(f, y0, t, **settings(method)).stats.rejected_steps > 0
    reference = gradients(f, y0, t, "direct", **settings(method))
    for mode in MODES:
        found = gradients(f, y0, t, qj.DiscreteAdjoint(mode=mode), **settings(method))
        assert relative(found, reference) < EQUAL


def test_equals_direct_with_several_observations_inside_one_step() -> None:
    f, y0 = Driven(), normal(4, 3)
    t = times(0.0, 0.01, 0.011, 0.3, 0.30001, 1.0, 1.5, 1.999, 2.0)
    sol = qj.solve(f, y0, t, rtol=1e-3, atol=1e-3)
    assert sol.stats.accepted_steps < len(t) - 1
    reference = gradients(f, y0, t, "direct", rtol=1e-3, atol=1e-3)
    for mode in MODES:
        assert relative(gradients(f, y0, t, qj.DiscreteAdjoint(mode=mode), rtol=1e-3, atol=1e-3), reference) < EQUAL


@pytest.mark.parametrize("max_states", [1, 2, 3, 4, 5, 7, 8, 100])
@pytest.mark.parametrize("method", ["dopri5", "dopri8", "fehlberg2", "rk4"])
def test_equals_direct_with_few_stored_states(method: str, max_states: int) -> None:
    f, y0, t = Bumpy(), normal(2, 3), observations(9)
    options = settings(method) if method == "rk4" else {**settings(method), "rtol": 1e-5, "atol": 1e-5}
    reference = gradients(f, y0, t, "direct", **options)
    found = gradients(f, y0, t, qj.DiscreteAdjoint(max_states=max_states), **options)
    assert relative(found, reference) < EQUAL


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("keep", ["stages", "states"])
@pytest.mark.parametrize("method", ["dopri5", "dopri8", "adaptive_heun", "rk4", "midpoint"])
def test_equals_direct_in_every_mode(method: str, keep: str, mode: str) -> None:
    f, y0, t = Driven(), normal(4, 3), observations(5)
    reference = gradients(f, y0, t, "direct", **settings(method))
    found = gradients(f, y0, t, qj.DiscreteAdjoint(keep=keep, mode=mode), **settings(method))
    assert relative(found, reference) < EQUAL


@pytest.mark.parametrize("mode", ["auto", *MODES])
@pytest.mark.parametrize("shape", [(3,), (1, 3), (4, 3), (2, 5, 3), (2, 2, 2, 3)])
def test_equals_direct_on_states_of_any_shape(shape: tuple[int, ...], mode: str) -> None:
    f, y0, t = Driven(), normal(*shape), observations(3)
    reference = gradients(f, y0, t, "direct")
    assert relative(gradients(f, y0, t, qj.DiscreteAdjoint(mode=mode)), reference) < EQUAL


def test_equals_direct_on_a_number() -> None:
    w = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def f(t: Tensor, y: Tensor) -> Tensor:
        return torch.sin(w * y) + t

    y0, t = torch.tensor(0.4, dtype=torch.float64), observations(3)
    reference = gradients(f, y0, t, "direct", [w])
    for mode in ("auto", *MODES):
        assert relative(gradients(f, y0, t, qj.DiscreteAdjoint(mode=mode), [w]), reference) < EQUAL


def test_equals_direct_on_times_of_each_sample() -> None:
    f, y0 = Driven(), normal(4, 3)
    t = torch.rand(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(1)
    reference = gradients(f, y0, t, "direct")
    for how in (*(qj.DiscreteAdjoint(mode=m) for m in MODES), qj.DiscreteAdjoint(max_states=2)):
        assert relative(gradients(f, y0, t, how), reference) < EQUAL


class Switched(Network):
    """Jumps at t = 0.75 in its speed and in the direction of a linear part."""

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        late = (t >= 0.75).to(y)
        return self.net(y) * (1.0 + 4.0 * late) - y * (0.1 - 2.0 * late)


@pytest.mark.parametrize("mode", ["auto", *MODES])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equals_direct_across_discontinuities(dtype: torch.dtype, mode: str) -> None:
    f, y0 = Switched().to(dtype), normal(4, 3).to(dtype)
    for t in (times(0.0, 0.2, 1.0), times(0.0, 0.75, 1.0), times(0.75, 0.8, 1.0)):
        options: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4, "options": {"jump_t": times(0.75)}}
        reference = gradients(f, y0, t.to(dtype), "direct", **options)
        found = gradients(f, y0, t.to(dtype), qj.DiscreteAdjoint(mode=mode), **options)
        assert relative(found, reference) < (EQUAL if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_equals_direct_on_perturbed_grids(mode: str) -> None:
    f, y0, t = Switched(), normal(4, 3), times(0.0, 0.375, 0.75, 1.5)
    options: dict[str, Any] = {"method": "rk4", "options": {"step_size": 0.375, "perturb": True}}
    reference = gradients(f, y0, t, "direct", **options)
    assert relative(gradients(f, y0, t, qj.DiscreteAdjoint(mode=mode), **options), reference) < EQUAL


@pytest.mark.parametrize("interp", ["linear", "cubic"])
def test_times_on_a_fixed_grid_are_differentiated_as_direct_does(interp: str) -> None:
    f, y0, t = Driven(), normal(4, 3), times(0.0, 0.31, 0.32, 1.0)
    for options in ({"step_size": 0.2, "interp": interp}, {"interp": interp}):
        reference = gradients(f, y0, t, "direct", method="rk4", options=options)
        for how in ("discrete", qj.DiscreteAdjoint(max_states=2)):
            assert relative(gradients(f, y0, t, how, method="rk4", options=options), reference) < EQUAL


def test_float32_agrees_to_its_precision() -> None:
    f, y0, t = Driven().float(), normal(4, 3).float(), observations(5).float()
    reference = gradients(f, y0, t, "direct")
    for mode in MODES:
        assert relative(gradients(f, y0, t, qj.DiscreteAdjoint(mode=mode)), reference) < 1e-5


def test_checkpointing_recomputes_logarithmically_many_steps() -> None:
    """With s states for n steps the binomial schedule replays each step at most r times, n <= C(s + r, r)."""
    f, y0, t = nn.Linear(1, 1).double(), normal(1, 1), times(0.0, 1.0)

    def replays(steps: int, max_states: int | None) -> float:
        how = qj.DiscreteAdjoint(max_states=max_states, mode="joint", activations=0)
        sol = qj.solve(lambda t, y: f(y), y0, t, method="euler", gradient=how, options={"step_size": 1 / steps})
        loss(sol.ys).backward()
        return (sol.stats.backward_evaluations - steps) / steps

    assert replays(256, None) == 0.0
    assert replays(256, 9) <= 4.0
    assert replays(1024, 11) <= 5.0
    assert replays(64, 2) <= 11.0
    assert replays(16, 1) <= 8.5  # without a state to spare, each step is walked to from the start


def test_settings_that_make_no_sense_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="'stages' or 'states'"):
        qj.DiscreteAdjoint(keep="all")
    with pytest.raises(ValueError, match="Did you mean 'stacked'"):
        qj.DiscreteAdjoint(mode="stackd")
    with pytest.raises(ValueError, match="at least 1"):
        qj.DiscreteAdjoint(max_states=0)
    y0 = normal(2, 3).requires_grad_()
    with pytest.raises(ValueError, match="Runge-Kutta"):
        qj.odeint(Network(), y0, times(0.0, 1.0), gradient="discrete", method="explicit_adams")
