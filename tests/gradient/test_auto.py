"""The automatic choice is a pure function of sizes; these tests state what it must do."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from quadjoint.gradient.choose.cost import Sizes, decide, predict, predict_collocation


def sizes(**changes: object) -> Sizes:
    base = {
        "rows": 200,
        "features": 5,
        "state_bytes": 4000,
        "parameter_count": 10_000,
        "parameter_bytes": 40_000,
        "activation_bytes": 400_000,
        "evaluations": 40,
    }
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
    best = decide(costs, limit=2_000_000).name
    assert best != "direct" and costs[best].bytes <= 2_000_000


def test_where_nothing_fits_the_leanest_is_taken() -> None:
    costs = predict(sizes())
    assert decide(costs, limit=0).name == min(costs, key=lambda n: costs[n].bytes)


def test_few_rows_and_many_parameters_of_linear_layers_are_stacked() -> None:
    few = {"rows": 2, "features": 4, "parameter_count": 9_000_000, "parameter_bytes": 36_000_000, "evaluations": 25}
    assert decide(predict(sizes(**few, linear=True))).name == "stacked"
    assert decide(predict(sizes(**few, linear=False))).name == "direct"


def test_many_rows_take_the_joint_product_among_the_discrete_modes() -> None:
    costs = predict(sizes(rows=200, parameter_count=1_000_000, parameter_bytes=4_000_000))
    assert costs["joint"].seconds < costs["stacked"].seconds


def measured(net: Net, y: Tensor) -> Sizes:
    return qj.explain(net, y, torch.tensor([0.0, 1.0]), show=False).sizes


def test_activations_are_measured_without_parameters() -> None:
    kept = measured(Net(100), torch.randn(50, 2)).activation_bytes
    # Input, pre-activation and activation of the hidden layer: at least the latter, at most a few of them.
    assert 50 * 100 * 4 <= kept <= 4 * 50 * 100 * 4


def test_linear_layers_are_told_from_others() -> None:
    class Kernel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(2))

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return y @ self.weight

    assert measured(Net(10), torch.randn(4, 2)).linear
    assert not qj.explain(Kernel(), torch.randn(4, 2), torch.tensor([0.0, 1.0]), show=False).sizes.linear


def test_the_memory_limit_is_kept_and_the_reason_given(caplog: pytest.LogCaptureFixture) -> None:
    net = Net(200)
    y, t = torch.randn(64, 2), torch.tensor([0.0, 1.0])
    with caplog.at_level(logging.DEBUG, logger="quadjoint"):
        sol = qj.solve(net, y, t, gradient=qj.Auto(memory_limit=150_000))
    assert sol.stats.method == "discrete"
    assert "auto chose" in sol.stats.reason and "MiB" in sol.stats.reason
    assert any("auto chose" in record.message for record in caplog.records)
    sol.ys.sum().backward()


def test_the_choice_does_not_depend_on_solves_before() -> None:
    net = Net(10)
    y, t = torch.randn(4, 2), torch.linspace(0.0, 20.0, 5)
    reasons = {qj.solve(net, y, t, rtol=rtol).stats.reason for rtol in (1e-3, 1e-6, 1e-3)}
    assert len(reasons) == 1


def test_steps_beyond_the_limit_of_direct_are_transposed_to_the_same_gradient() -> None:
    torch.manual_seed(0)
    net = Net(20).double()
    y, t = torch.randn(6, 2, dtype=torch.float64), torch.linspace(0.0, 8.0, 9, dtype=torch.float64)
    found = []
    for limit in (None, 60_000, 20_000):
        sol = qj.solve(net, y, t, gradient=qj.Direct(memory_limit=limit), rtol=1e-6)
        loss = sol.ys.square().sum() + sol(torch.tensor([0.3, 7.9])).sum()
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))]))
        assert (sol.stats.backward_evaluations > 0) == (limit is not None)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-14)


def test_only_exact_gradients_are_chosen_unless_that_is_asked_for() -> None:
    f, y0, t = Net(32), torch.ones(8, 2), torch.linspace(0, 6, 40)
    sol = qj.solve(f, y0, t)
    assert sol.stats.method == "direct" and "gq" not in sol.stats.reason
    sol = qj.solve(f, y0, t, gradient=qj.Auto(exact=False))
    assert sol.stats.method == "gq" and "direct" in sol.stats.reason


def test_products_for_every_number_of_a_sample_pay_for_few_numbers() -> None:
    settings = {"steps": 5, "nodes": 3, "together": 20}
    assert decide(predict_collocation(sizes(rows=15, features=2), **settings)).name == "dense"
    wide = sizes(rows=200, features=8, parameter_count=10**6, parameter_bytes=4 * 10**6)
    assert decide(predict_collocation(wide, **settings)).name == "iterate"


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


def test_compiled_steps_are_backpropagated_through_where_memory_allows() -> None:
    costs = predict(sizes(rows=15, features=2, compiled=True))
    assert decide(costs).name == "direct"
    assert decide(costs, limit=costs["direct"].bytes - 1).name != "direct"
