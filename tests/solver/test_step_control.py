"""Step sizes: what the options do, what callbacks see, how steps are counted and repeated."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import problems
import quadjoint as qj
from quadjoint.errors import NonFiniteStateError, StepSizeUnderflowError
from quadjoint.solver.state import max_norm

# The forward solve is the subject here; no gradient method has to be chosen.
odeint, solve = partial(qj.odeint, gradient="direct"), partial(qj.solve, gradient="direct")

TIMES = torch.tensor([0.1, 0.9, 2.0], dtype=torch.float64)


class Recorder(torch.nn.Module):
    """dy/dt = -4 y + sin(20 t), with what the callbacks were told."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[float, float]] = []
        self.accepted: list[tuple[float, float]] = []
        self.rejected: list[tuple[float, float]] = []

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return -4 * y + torch.sin(20 * t)

    def callback_step(self, t: Tensor, y: Tensor, dt: Tensor) -> None:
        self.steps.append((float(t), float(dt)))

    def callback_accept_step(self, t: Tensor, y: Tensor, dt: Tensor) -> None:
        self.accepted.append((float(t), float(dt)))

    def callback_reject_step(self, t: Tensor, y: Tensor, dt: Tensor) -> None:
        self.rejected.append((float(t), float(dt)))


def record(times: tuple[float, ...] = (0.0, 2.0), **settings: Any) -> tuple[Recorder, qj.Solution]:
    f = Recorder()
    t = torch.tensor(times, dtype=torch.float64)
    return f, solve(f, torch.ones(1, dtype=torch.float64), t, **settings)


def test_callbacks_see_every_step() -> None:
    f, sol = record(options={"first_step": 1.0})
    assert len(f.accepted) == sol.stats.accepted_steps and len(f.rejected) == sol.stats.rejected_steps > 0
    assert sorted(f.steps) == sorted(f.accepted + f.rejected)
    ends = [t + dt for t, dt in f.accepted]
    assert ends == pytest.approx([t for t, _ in f.accepted[1:]] + [2.0])


@pytest.mark.parametrize("controller", ["i", "pi"])
def test_limits_of_the_step_size(controller: str) -> None:
    f, _ = record(options={"max_step": 0.03, "controller": controller})
    assert max(dt for _, dt in f.steps) <= 0.03 * (1 + 1e-9)
    f, _ = record(options={"min_step": 0.05, "controller": controller}, rtol=1e-9, atol=1e-9)
    assert min(dt for _, dt in f.accepted[:-1]) >= 0.05 * (1 - 1e-9)
    f, _ = record(options={"first_step": 0.0123, "controller": controller})
    assert f.steps[0][1] == pytest.approx(0.0123)


def test_step_size_factors() -> None:
    f, _ = record(options={"ifactor": 1.5, "first_step": 1e-4})
    growth = [b / a for (_, a), (_, b) in itertools.pairwise(f.accepted[:-1])]
    assert max(growth) <= 1.5 * (1 + 1e-9) and growth[0] == pytest.approx(1.5)
    f, _ = record(options={"dfactor": 0.7, "first_step": 1.0})
    assert f.rejected[0][1] == 1.0 and f.steps[1][1] == pytest.approx(0.7)
    careful, bold = record(options={"safety": 0.5})[0], record(options={"safety": 0.95})[0]
    assert len(careful.accepted) > len(bold.accepted)


@pytest.mark.filterwarnings("ignore:The problem .* seems to be stiff")
def test_pi_controller_rejects_less_where_stability_limits_the_step() -> None:
    def f(t: Tensor, y: Tensor) -> Tensor:
        return -300 * (y - torch.cos(t))

    y0, t = torch.zeros(1, dtype=torch.float64), torch.tensor([0.0, 10.0], dtype=torch.float64)
    plain, smooth = (solve(f, y0, t, options={"controller": name}).stats for name in ("i", "pi"))
    assert smooth.rejected_steps < plain.rejected_steps / 2


@pytest.mark.parametrize("times", [(0.0, 2.0), (2.0, 0.0)])
def test_steps_land_on_step_t_and_jump_t(times: tuple[float, float]) -> None:
    f, _ = record(times, options={"step_t": torch.tensor([0.75, 5.0]), "jump_t": torch.tensor([1.25, 0.5])})
    assert {0.5, 0.75, 1.25} <= {t for t, _ in f.accepted}


@pytest.mark.parametrize("method", ["dopri5", "dopri8", "tsit5", "bosh3", "adaptive_heun"])
def test_named_discontinuities_cost_nothing(method: str) -> None:
    """y' = 1 before t = 1 and -2 from there on: with the jump named, every method is exact."""

    def f(t: Tensor, y: Tensor) -> Tensor:
        return torch.where(t < 1.0, 1.0, -2.0).to(y).expand_as(y)

    y0, t = torch.zeros(1, dtype=torch.float64), torch.tensor([0.0, 1.0, 2.5], dtype=torch.float64)
    for times, end in ((t, -2.0), (t.flip(0), 2.0)):
        sol = solve(f, y0, times, method=method, options={"jump_t": [1.0]}, rtol=1e-10, atol=1e-10)
        assert float(sol.ys[-1]) == pytest.approx(end, abs=1e-12)
        assert sol.stats.rejected_steps == 0


def test_norm_decides_what_counts() -> None:
    """An error that the norm does not see does not shorten the steps."""
    f, y0, t = problems.Growth(), torch.tensor([1.0, 1e4], dtype=torch.float64), TIMES
    everything = solve(f, y0, t, atol=1e-4, rtol=0.0, options={"norm": max_norm})
    first_only = solve(f, y0, t, atol=1e-4, rtol=0.0, options={"norm": lambda y: y[:1].abs().max()})
    assert first_only.stats.accepted_steps < everything.stats.accepted_steps


def test_tolerances_of_each_component() -> None:
    f, t = problems.Oscillator(), TIMES
    loose = solve(f, f.y0, t, rtol=(1e-3, 1e-3), atol=(1e-3, torch.tensor([[1e-3], [1e-3]])))
    tight = solve(f, f.y0, t, rtol=(1e-3, 1e-9), atol=(1e-3, torch.tensor([[1e-9], [1e-9]])))
    assert tight.stats.accepted_steps > loose.stats.accepted_steps
    assert problems.error(tight.ys, f.exact(f.y0, t)) < 1e-6


@pytest.mark.parametrize("interp", ["linear", "cubic"])
def test_interpolation_between_fixed_steps(interp: str) -> None:
    problem = problems.Growth()
    t = torch.tensor([0.0, 0.31, 0.37, 1.0], dtype=torch.float64)
    options = {"step_size": 0.1, "interp": interp}
    found = problems.error(odeint(problem, problem.y0, t, method="rk4", options=options), problem.exact(problem.y0, t))
    assert (found > 1e-4) == (interp == "linear")


def test_a_grid_of_ones_own() -> None:
    def grid(f: Any, y0: Tensor, t: Tensor) -> Tensor:
        return torch.tensor([0.0, 0.5, 1.5, 2.0], dtype=torch.float64)

    f, _ = record(method="midpoint", options={"grid_constructor": grid})
    assert f.steps == [(0.0, 0.5), (0.5, 1.0), (1.5, 0.5)]


def test_repeated_solves_are_identical_to_the_bit() -> None:
    problem = problems.Linear()
    first, second = (odeint(problem, problem.y0, TIMES) for _ in range(2))
    assert torch.equal(first, second)


def test_counts_of_evaluations_are_those_made() -> None:
    calls = 0

    def f(t: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return -y

    sol = solve(f, torch.ones(2), torch.tensor([0.0, 1.0]))
    assert sol.stats.forward_evaluations == calls
    assert calls == 2 + 6 * (sol.stats.accepted_steps + sol.stats.rejected_steps)  # search, then six new stages a step
    assert math.isclose(float(sol.ys[-1, 0]), math.exp(-1), rel_tol=1e-3)


MODES = pytest.mark.parametrize("independent", [False, True])


@MODES
def test_a_shortest_step_that_is_not_finite_is_an_error(independent: bool) -> None:
    """f is a root of a negative number from t = 0.9 on, and no step may be shorter than that from 0.75 to 1."""

    def run(**options: Any) -> qj.Solution:
        options = {"min_step": 0.25, "max_step": 0.25, **options}
        f = lambda t, y: (0.9 - t).sqrt() + 0 * y  # noqa: E731
        t = torch.tensor([0.0, 1.0], dtype=torch.float64)
        return solve(f, torch.ones(1, 1, dtype=torch.float64), t, independent=independent, options=options)

    with pytest.raises(NonFiniteStateError, match=r"not finite at t = 0\.75|t = 0\.75 .*not finite"):
        run()
    if independent:
        sol = run(on_failure="stop")
        assert sol.status is not None and sol.status[0].name == "NOT_FINITE" and float(sol.status.t) == 0.75
        assert float(sol.ys[-1]) == pytest.approx(1 + 2 / 3 * (0.9**1.5 - 0.15**1.5), abs=1e-3)


@MODES
@pytest.mark.parametrize("length", [1.0, 1.0005])
def test_steps_of_the_shortest_length_are_accepted_whatever_their_error(independent: bool, length: float) -> None:
    """Also where rounding, or the end of the solve, makes them a little longer."""
    options = {"min_step": 0.1, "max_num_steps": 30}
    sol = solve(
        lambda t, y: 100 * torch.cos(100 * t) + 0 * y,
        torch.ones(1, 1, dtype=torch.float64),
        torch.tensor([0.0, length], dtype=torch.float64),
        rtol=1e-10,
        atol=1e-10,
        independent=independent,
        options=options,
    )
    assert int(sol.stats.accepted_steps) == 10


@MODES
def test_equations_that_cannot_be_solved_in_the_shortest_step_are_an_error(independent: bool) -> None:
    """y' = exp(y) blows up at t = 1, before which implicit steps of 0.3 have no solution."""
    with pytest.raises(StepSizeUnderflowError, match=r"min_step"):
        solve(
            lambda t, y: torch.exp(y),
            torch.zeros(1, 1, dtype=torch.float64),
            torch.tensor([0.0, 0.95], dtype=torch.float64),
            method="kvaerno3",
            independent=independent,
            options={"min_step": 0.45, "max_num_steps": 100},
        )


@pytest.mark.parametrize("method", ["dopri5", "rk4", "explicit_adams", "implicit_adams", "alf"])
@pytest.mark.parametrize("tolerance", [1e-6, (1e-6, 1e-8)])
def test_states_without_entries(method: str, tolerance: Any) -> None:
    y0, t = (torch.ones(0, 3), torch.ones(0)), torch.linspace(0.0, 1.0, 11)
    x, v = odeint(lambda t, y: (-y[0], -y[1]), y0, t, method=method, rtol=tolerance, atol=tolerance)
    assert x.shape == (11, 0, 3) and v.shape == (11, 0)


@pytest.mark.parametrize("independent", [False, True])
def test_a_continuous_solution_at_no_times(independent: bool) -> None:
    sol = qj.solve(lambda t, y: -y, torch.ones(2, 3, requires_grad=True), TIMES.float(), independent=independent)
    assert sol(torch.empty(0)).shape == (0, 2, 3)


def test_an_infinite_number_of_steps_is_no_limit() -> None:
    for method in ("dopri5", "rk4"):
        odeint(lambda t, y: -y, torch.ones(2), TIMES, method=method, options={"max_num_steps": math.inf})


def test_steps_before_a_pause_count_too() -> None:
    """Of a solve that is differentiated in two ways, as a memory limit asks for."""
    w = torch.tensor(1.0, requires_grad=True)
    settings: dict[str, Any] = {"rtol": 1e-6, "gradient": qj.Direct(memory_limit=200)}
    taken = qj.solve(lambda t, y: -w * y, torch.ones(2), TIMES, **settings).stats
    assert "from t = " in taken.reason
    with pytest.raises(qj.SolveError, match="steps were not enough"):
        qj.solve(
            lambda t, y: -w * y, torch.ones(2), TIMES, options={"max_num_steps": taken.accepted_steps - 1}, **settings
        )
