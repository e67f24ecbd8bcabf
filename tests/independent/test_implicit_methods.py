"""Implicit methods with steps of each sample's own: stages are found, and not found, for every sample by itself."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from independent.helpers import DTYPE, relaxing
from independent.test_gradients import EXACT, gradients, largest_error, one_by_one, weights
from quadjoint.solver.methods.implicit import ImplicitStep
from quadjoint.solver.methods.sample_stages import SampleSolved, SampleStageSolver
from stiff_problems import PROBLEMS

METHODS = ["trbdf2", "kvaerno3", "kvaerno5", "radauIIA5"]
TIMES = torch.linspace(0.0, 2.0, 6, dtype=DTYPE)
MEDIUM: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6}


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_is_its_samples_one_by_one(method: str) -> None:
    """To rounding, in any company; and as right as steps that are shared."""
    f, y0 = relaxing(0.5, 400.0, 8.0)
    settings: dict[str, Any] = {"method": method, **MEDIUM}
    with torch.no_grad():
        sol = qj.solve(f, y0, TIMES, independent=True, **settings)
        alone = [qj.solve(f.alone(b), y0[b : b + 1], TIMES, independent=True, **settings) for b in range(3)]
        exact = qj.odeint(f, y0, TIMES, method="kvaerno5", rtol=1e-6, atol=1e-8)
        order = [2, 0, 2, 1]
        other, _ = relaxing(*f.rates[order, 0].tolist())
        shuffled = qj.odeint(other, y0[order], TIMES, independent=True, **settings)
    assert sol.stats.accepted_steps.tolist() == [int(one.stats.accepted_steps) for one in alone]
    assert sol.stats.rejected_steps.tolist() == [int(one.stats.rejected_steps) for one in alone]
    torch.testing.assert_close(sol.ys, torch.cat([one.ys for one in alone], dim=1), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(shuffled, sol.ys[:, order], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(sol.ys, exact, rtol=5e-3, atol=5e-4)


GIVEN = (*relaxing(0.2, 300.0, 6.0), TIMES, weights(torch.Size([len(TIMES), 3, 2])))
LOOSE: dict[str, Any] = {"independent": True, "rtol": 1e-3, "atol": 1e-5}


@functools.cache
def alone(method: str) -> list[Tensor]:
    return one_by_one(*GIVEN, gradient="discrete", method=method, **LOOSE)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["direct", "discrete", "auto"])
def test_exact_gradients_are_those_of_the_samples_one_by_one(method: str, how: str) -> None:
    found = gradients(*GIVEN, gradient=how, method=method, **LOOSE)
    assert largest_error(found, alone(method)) < 1e-10


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["states", "checkpoints"])
def test_steps_that_are_taken_again(method: str, how: str) -> None:
    """They begin with f instead of the last stage of the step before: the same to a part of rtol."""
    found = gradients(*GIVEN, gradient=EXACT[how], method=method, **LOOSE)
    assert largest_error(found, alone(method)) < 0.1 * LOOSE["rtol"]


@pytest.mark.parametrize("method", METHODS)
def test_gq_is_as_right_as_one_by_one(method: str) -> None:
    """And a gradient of the ODE, as that of tight steps is."""
    f, y0 = relaxing(0.2, 100.0)
    weight = weights(torch.Size([len(TIMES), 2, 2]))
    settings: dict[str, Any] = {"method": method, "independent": True, "gradient": "gq", **MEDIUM}
    found = gradients(f, y0, TIMES, weight, **settings)
    assert largest_error(found, one_by_one(f, y0, TIMES, weight, **settings)) < 1e-6
    tight = gradients(f, y0, TIMES, weight, method="kvaerno5", rtol=1e-7, atol=1e-9)
    assert largest_error(found, tight) < 2e-3


@pytest.mark.parametrize("gradient", ["direct", "discrete"])
def test_gradients_are_those_of_the_solution(gradient: str) -> None:
    """First and second derivatives of y = y0 exp(-k t) in stiff and in slow rates, and those in the times."""
    k = torch.tensor([[1.0], [40.0]], dtype=DTYPE, requires_grad=True)
    y0 = torch.tensor([[2.0], [1.0]], dtype=DTYPE, requires_grad=True)
    t = torch.tensor([[0.0, 0.3, 1.0], [0.0, 0.01, 0.05]], dtype=DTYPE, requires_grad=True)
    ys = qj.odeint(
        lambda t, y: -k * y, y0, t, independent=True, method="kvaerno5", rtol=1e-8, atol=1e-10, gradient=gradient
    )
    exact = y0 * torch.exp(-k * (t - t[:, :1]).T[..., None])
    torch.testing.assert_close(ys, exact, rtol=1e-6, atol=1e-7)
    found, right = (torch.autograd.grad(x.sum(), (k, y0, t), create_graph=True) for x in (ys, exact))
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    twice, right_twice = (torch.autograd.grad(x[0].sum(), (k, y0)) for x in (found, right))
    for a, b in zip(twice, right_twice, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def steep(width: Tensor) -> Any:
    """A switch from slope 1 to slope -1 as y passes t / 2, in a layer of each sample's own width."""
    return lambda t, y: -torch.tanh((y - 0.5 * t) / width)


@pytest.mark.parametrize("method", METHODS)
def test_newton_fails_for_one_sample_alone(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the steps of that sample are shortened, and the others are what they are without it."""
    lost: list[Tensor] = []
    solve = SampleStageSolver.solve

    def watched(self: SampleStageSolver, memory: Any) -> SampleSolved:
        solved = solve(self, memory)
        assert solved.lost is not None
        lost.append(solved.lost)
        return solved

    width = torch.tensor([[1.0], [1e-4], [0.5]], dtype=DTYPE)
    y0 = torch.tensor([[1.0], [-1.0], [0.0]], dtype=DTYPE)
    settings: dict[str, Any] = {"independent": True, "method": method, "options": {"first_step": 0.5}, **MEDIUM}
    with torch.no_grad():
        monkeypatch.setattr(SampleStageSolver, "solve", watched)
        sol = qj.solve(steep(width), y0, TIMES, **settings)
        monkeypatch.undo()
        rest = qj.solve(steep(width[[0, 2]]), y0[[0, 2]], TIMES, **settings)
        exact = qj.odeint(steep(width), y0, TIMES, rtol=1e-8, atol=1e-10)
    failures = torch.stack(lost).sum(0)
    assert failures[1] > 0 and failures[[0, 2]].tolist() == [0, 0]
    assert sol.stats.rejected_steps[1] >= failures[1]
    assert sol.stats.accepted_steps[[0, 2]].tolist() == rest.stats.accepted_steps.tolist()
    torch.testing.assert_close(sol.ys[:, [0, 2]], rest.ys, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(sol.ys, exact, rtol=5e-3, atol=5e-3)


def test_gradients_beside_a_sample_whose_stages_are_not_found() -> None:
    width = torch.tensor([[1.0], [1e-2]], dtype=DTYPE)
    y0 = torch.tensor([[1.0], [-1.0]], dtype=DTYPE)
    found = []
    for gradient in ("direct", "discrete"):
        w = width.clone().requires_grad_()
        ys = qj.odeint(
            steep(w), y0, TIMES, independent=True, method="kvaerno3", gradient=gradient, options={"first_step": 1.0}
        )
        found.append(torch.autograd.grad(ys.sum(), w)[0])
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(3,), (3, 2, 2), (3, 30)])
@pytest.mark.parametrize("method", ["kvaerno3", "radauIIA5"])
def test_states_of_any_shape(shape: tuple[int, ...], method: str) -> None:
    """Those of large samples too, whose steps are transposed one by one: states and gradients of y' = -k (y - m)."""
    generator = torch.Generator().manual_seed(0)
    y0 = torch.rand(shape, dtype=DTYPE, generator=generator).requires_grad_()
    k = torch.tensor([0.5, 1.0, 80.0], dtype=DTYPE).reshape(3, *(1,) * (len(shape) - 1)).requires_grad_()

    def f(t: Tensor, y: Tensor) -> Tensor:
        assert t.shape in (k.shape, ())
        middle = 0.5 if y.ndim == 1 else 0.5 + 0.1 * y.flip(-1)
        return -k * (y - middle)

    def gradient(**settings: Any) -> tuple[Tensor, ...]:
        ys = qj.odeint(f, y0, TIMES, **settings)
        return ys.detach(), *torch.autograd.grad(ys[1:].square().sum(), (y0, k))

    found = gradient(independent=True, method=method, gradient="discrete", **MEDIUM)
    again = gradient(independent=True, method=method, gradient="direct", **MEDIUM)
    exact = gradient(rtol=1e-6, atol=1e-8, gradient="discrete")
    for a, b, c in zip(found, again, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(a, c, rtol=5e-3, atol=1e-3)


def test_states_of_several_tensors_and_complex_ones() -> None:
    rates = torch.tensor([[1.0], [500.0]], dtype=DTYPE)
    settings: dict[str, Any] = {"independent": True, "method": "radauIIA5", "rtol": 1e-6, "atol": 1e-8}
    x, v = torch.ones(2, 3, dtype=DTYPE), torch.ones(2, 1, dtype=DTYPE)
    ys = qj.odeint(lambda t, y: (-rates * y[0], torch.cos(t)), (x, v), TIMES, **settings)
    torch.testing.assert_close(ys[0], torch.exp(-rates * TIMES[:, None, None]).expand(6, 2, 3), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ys[1], (1 + torch.sin(TIMES))[:, None, None].expand(6, 2, 1), rtol=1e-5, atol=1e-6)
    turning = torch.tensor([[1.0 + 2.0j], [-50.0 - 20.0j]], dtype=torch.complex128, requires_grad=True)
    start = torch.ones(2, 1, dtype=torch.complex128)
    states = qj.odeint(lambda t, y: turning * y, start, TIMES, gradient="discrete", **settings)
    exact = torch.exp(turning * TIMES[:, None, None])
    torch.testing.assert_close(states, exact, rtol=1e-4, atol=1e-5)
    found, right = (torch.autograd.grad(z.abs().square().sum(), turning)[0] for z in (states, exact))
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


def test_stiff_problems_with_rates_of_their_own() -> None:
    """Robertson's reaction at three speeds, each to the end that makes it the one whose solution is known."""
    problem = PROBLEMS["robertson"]
    speed = torch.tensor([[1.0], [0.1], [10.0]], dtype=DTYPE)
    rows = torch.cat([torch.zeros_like(speed), problem.end / speed], dim=1)
    y0 = torch.tensor([problem.y0] * 3, dtype=DTYPE)
    with torch.no_grad():
        ys = qj.odeint(
            lambda t, y: speed * problem.f(t, y),
            y0,
            rows,
            independent=True,
            method="kvaerno5",
            rtol=1e-6,
            atol=1e-6 * problem.atol,
        )
    torch.testing.assert_close(ys[-1], torch.tensor([problem.reference] * 3, dtype=DTYPE), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("method", METHODS)
def test_events_and_failures(method: str) -> None:
    """y' = -k (y - 2) gets from 0 to 1 at log(2) / k; the third sample has no derivative from t = 0.1 on."""
    k = torch.tensor([[0.7], [300.0], [1.0]], dtype=DTYPE, requires_grad=True)
    end = torch.tensor([[10.0], [10.0], [0.1]], dtype=DTYPE)
    sol = qj.solve(
        lambda t, y: -k * (y - 2.0) * torch.sqrt(end - t) / torch.sqrt(end - t),
        torch.zeros(3, 1, dtype=DTYPE),
        torch.tensor([0.0, 5.0], dtype=DTYPE),
        event_fn=lambda t, y: y[:, 0] - 1.0,
        independent=True,
        method=method,
        gradient="discrete",
        rtol=1e-7,
        atol=1e-9,
        options={"on_failure": "nan"},
    )
    assert [sol.status[b].name for b in range(2)] == ["EVENT", "EVENT"] and bool(sol.status.failed[2])
    exact = 0.6931471805599453 / k[:2, 0]
    torch.testing.assert_close(sol.event_time[:2], exact, rtol=2e-5, atol=0.0)
    (found,) = torch.autograd.grad(sol.event_time.nansum(), k)
    torch.testing.assert_close(found[:2], -exact[:, None] / k[:2], rtol=1e-3, atol=0.0)
    assert found[2] == 0.0


def test_samples_that_influence_each_other_are_refused_in_words() -> None:
    y0 = torch.ones(2, 3, dtype=DTYPE)
    settings: dict[str, Any] = {"independent": True, "method": "kvaerno3"}
    with pytest.raises(ValueError, match=r"samples of up to 64 numbers that do not depend on each other"):
        qj.odeint(lambda t, y: -y + 2.0 * y.flip(0), y0, TIMES, **settings)
    with pytest.raises(ValueError, match=r"samples of up to 64 numbers"):
        qj.odeint(lambda t, y: -y, torch.ones(2, 65, dtype=DTYPE), TIMES, **settings)
    with pytest.raises(ValueError, match=r"options\['linear_solver'\] = 'auto' or 'batched'"):
        qj.odeint(lambda t, y: -y, y0, TIMES, options={"linear_solver": "krylov"}, **settings)


@pytest.mark.parametrize("method", METHODS)
def test_the_steps_of_one_sample_are_those_of_shared_steps(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the order of the error estimate; shared steps are not kept equal here, which would save factorisations."""
    monkeypatch.setattr(ImplicitStep, "settled", False)
    counts = []
    for independent in (False, True):
        with torch.no_grad():
            sol = qj.solve(
                lambda t, y: torch.cos(t) - y,
                torch.ones(1, 1, dtype=DTYPE),
                torch.tensor([0.0, 10.0], dtype=DTYPE),
                method=method,
                independent=independent,
                options={"controller": "pid"},
            )
        counts.append((int(sol.stats.accepted_steps), int(sol.stats.rejected_steps)))
    assert counts[0] == counts[1]
