"""The automatic choice is a pure function of sizes; these tests state what it must do."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from quadjoint.gradient.choose.cost import Sizes, cheapest, predict
from quadjoint.gradient.choose.sizes import measure


def sizes(**changes: object) -> Sizes:
    base = {
        "rows": 200, "features": 5, "state_bytes": 4000, "parameters": 10_000, "parameter_bytes": 40_000,
        "activation_bytes": 400_000, "evaluations": 40, "independent": True,
    }  # fmt: skip
    return Sizes(**{**base, **changes})  # type: ignore[arg-type]


class Net(nn.Module):
    def __init__(self, width: int, d: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(d, width), nn.Softplus(), nn.Linear(width, d))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.layers(y)


def test_direct_needs_every_activation_and_discrete_only_one() -> None:
    costs = predict(sizes())
    assert costs["direct"].bytes == 40 * (400_000 + 4000)
    assert costs["joint"].bytes == 40 * 4000 + 400_000


def test_where_direct_does_not_fit_something_exact_that_fits_is_taken() -> None:
    costs = predict(sizes())
    best = cheapest(costs, limit=2_000_000)
    assert best != "direct" and costs[best].bytes <= 2_000_000


def test_where_nothing_fits_the_leanest_is_taken() -> None:
    costs = predict(sizes())
    assert cheapest(costs, limit=0) == min(costs, key=lambda n: costs[n].bytes)


def test_few_rows_and_many_parameters_are_stacked_or_parallel() -> None:
    few = sizes(rows=2, features=4, parameters=9_000_000, parameter_bytes=36_000_000, evaluations=25)
    assert cheapest(predict(few), float("inf")) == "parallel"
    coupled = sizes(
        rows=2, features=4, parameters=9_000_000, parameter_bytes=36_000_000, evaluations=25, independent=False
    )
    assert cheapest(predict(coupled), float("inf")) == "stacked"


def test_many_rows_take_the_joint_product_among_the_discrete_modes() -> None:
    costs = predict(sizes(rows=200, parameters=1_000_000, parameter_bytes=4_000_000))
    assert costs["joint"].seconds < min(costs["stacked"].seconds, costs["parallel"].seconds)


def test_activations_are_measured_without_parameters() -> None:
    net = Net(100)
    y = torch.randn(50, 2)
    sol = qj.solve(net, y, torch.tensor([0.0, 1.0]))
    problem = _problem(net, y)
    kept = measure(problem, net, y, None).activation_bytes
    # Input, pre-activation and activation of the hidden layer: at least the latter, at most a few of them.
    assert 50 * 100 * 4 <= kept <= 4 * 50 * 100 * 4
    assert sol.stats.method == "direct"


def _problem(net: Net, y: Tensor) -> object:
    from quadjoint.solver.dynamics import Dynamics
    from quadjoint.solver.integrate import Observer
    from quadjoint.solver.methods.catalogue import make_solver
    from quadjoint.solver.problem import Problem
    from quadjoint.solver.state import Layout

    t = torch.tensor([0.0, 1.0], dtype=torch.float64)
    solver = make_solver("dopri5", {}, 1e-3, 1e-3, Layout(), t, t.tolist(), y, net)
    return Problem(Dynamics(net, y), solver, lambda: Observer(t.tolist()))


def test_the_memory_limit_is_kept_and_the_reason_given(caplog: pytest.LogCaptureFixture) -> None:
    net = Net(200)
    y, t = torch.randn(64, 2), torch.tensor([0.0, 1.0])
    with caplog.at_level(logging.DEBUG, logger="quadjoint"):
        sol = qj.solve(net, y, t, gradient=qj.Auto(memory_limit=150_000))
    assert sol.stats.method == "discrete"
    assert "auto chose" in sol.stats.reason and "MiB" in sol.stats.reason
    assert any("auto chose" in record.message for record in caplog.records)
    sol.ys.sum().backward()


def test_the_second_solve_knows_the_evaluations_of_the_first() -> None:
    net = Net(10)
    y, t = torch.randn(4, 2), torch.tensor([0.0, 1.0])
    first = qj.solve(net, y, t).stats.forward_evaluations
    problem = _problem(net, y)
    problem.solver = _same_tolerances(problem)
    assert measure(problem, net, y, None).evaluations == first


def _same_tolerances(problem: object) -> object:
    return problem.solver.with_settings(rtol=1e-3, atol=1e-6)  # type: ignore[attr-defined]


def test_without_grad_nothing_is_measured() -> None:
    net = Net(10)
    with torch.no_grad():
        sol = qj.solve(net, torch.randn(4, 2), torch.tensor([0.0, 1.0]))
    assert "no gradient" in sol.stats.reason


def test_scipy_gets_the_quadrature_adjoint() -> None:
    net = Net(10).double()
    y, t = torch.randn(4, 2, dtype=torch.float64), torch.tensor([0.0, 1.0])
    sol = qj.solve(net, y, t, method="scipy_solver", options={"solver": "RK45"})
    assert sol.stats.method == "gq"
    sol.ys.sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_dynamics_that_cannot_be_stacked_are_found_out_without_a_warning() -> None:
    """Small samples suggest the parallel mode, but a function that calls autograd itself cannot run under vmap."""

    class Hamiltonian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            with torch.enable_grad():
                y = y if y.requires_grad else y.detach().requires_grad_()
                (g,) = torch.autograd.grad(self.energy(y).sum(), y, create_graph=True)
            return torch.stack([g[..., 1], -g[..., 0]], -1)

    torch.manual_seed(0)
    f, y, t = Hamiltonian(), torch.randn(4, 2), torch.linspace(0, 3, 16)
    first = qj.solve(f, y, t)
    assert "auto chose parallel" in first.stats.reason
    found = torch.autograd.grad(first.ys.square().sum(), f.energy[0].weight)[0]
    again = qj.solve(f, y, t)
    assert "parallel" not in again.stats.reason
    wanted = torch.autograd.grad(again.ys.square().sum(), f.energy[0].weight)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_trying_for_one_solve_whether_samples_are_independent_has_its_price() -> None:
    cost = {tried: predict(sizes(rows=2, tried=tried))["parallel"].seconds for tried in (True, False)}
    assert cost[False] > cost[True] + 1e-3


def test_compiled_steps_are_backpropagated_through_where_memory_allows() -> None:
    """A graph has no Python overhead that the parallel mode could save, and every step is transposed as a whole."""
    costs = predict(sizes(rows=15, features=2, compiled=True))
    assert set(costs) == {"direct", "joint"}
    assert cheapest(costs, float("inf")) == "direct"
    assert cheapest(costs, costs["direct"].bytes - 1) == "joint"
