"""The layers: shapes, what they compute, and that every gradient method trains through them."""

from __future__ import annotations

import pytest
import torch

from quadjoint.nn import MLP, Augment, NeuralODE, SecondOrder, TimeMLP

GRADIENTS = ["direct", "adjoint", "seminorm", "gq-paper", "gq", "discrete", "auto"]


def gradient_of(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    model(x).square().sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_an_mlp_has_one_layer_fewer_than_sizes_and_none_after_the_last():
    net = MLP(3, 8, 8, 2)
    assert [type(layer).__name__ for layer in net] == ["Linear", "Softplus", "Linear", "Softplus", "Linear"]
    with pytest.raises(ValueError, match="at least an input and an output"):
        MLP(3)


def test_time_enters_as_one_more_input():
    torch.manual_seed(0)
    f = TimeMLP(2, 8)
    y, t = torch.randn(5, 2), torch.tensor(0.7)
    assert torch.allclose(f(t, y), f.net(torch.cat([y, torch.full((5, 1), 0.7)], dim=1)))
    assert torch.equal(f(0.7, y), f(t, y))
    times = torch.linspace(0, 1, 5)
    rows = torch.stack([f(s, row) for s, row in zip(times, y, strict=True)])
    assert torch.allclose(f(times, y), rows, atol=1e-6)
    assert torch.allclose(f(times[:, None], y), rows, atol=1e-6)
    autonomous = TimeMLP(2, 8, time=False)
    assert torch.equal(autonomous(0.0, y), autonomous(9.0, y))


@pytest.mark.parametrize("f", [TimeMLP(2, 8), SecondOrder(TimeMLP(2, 8, out=1, time=False))], ids=["first", "second"])
def test_dynamics_can_be_stacked(f):
    t, y = torch.rand(3), torch.randn(3, 5, 2)
    stacked = torch.func.vmap(f)(t, y)
    assert torch.allclose(stacked, torch.stack([f(s, x) for s, x in zip(t, y, strict=True)]), atol=1e-6)


def test_second_order_dynamics_solve_the_oscillator():
    ode = NeuralODE(SecondOrder(lambda t, y: -y[..., :1]), rtol=1e-8, atol=1e-8)
    t = torch.linspace(0, 6, 7, dtype=torch.float64)
    ys = ode.trajectory(torch.tensor([[1.0, 0.0]], dtype=torch.float64), t)
    assert torch.allclose(ys[:, 0], torch.stack([t.cos(), -t.sin()], dim=1), atol=1e-6)


def test_second_order_dynamics_need_as_many_velocities_as_positions():
    with pytest.raises(ValueError, match="of even size in its last dimension; got 3"):
        SecondOrder(lambda t, y: -y[..., :1])(torch.tensor(0.0), torch.ones(2, 3))


def test_augment_adds_zeros_and_keeps_the_rest():
    x = torch.randn(4, 3, 2)
    assert torch.equal(Augment(5)(x)[..., :2], x) and not Augment(5)(x)[..., 2:].any()


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_every_gradient_method_trains_a_neural_ode(gradient):
    torch.manual_seed(0)
    model = torch.nn.Sequential(Augment(1), NeuralODE(TimeMLP(3, 6), gradient=gradient, rtol=1e-8, atol=1e-8))
    model = model.double()
    x = torch.randn(4, 2, dtype=torch.float64)
    found = gradient_of(model, x)
    model[1].gradient = "direct"
    assert torch.allclose(found, gradient_of(model, x), rtol=1e-3, atol=1e-6)


def test_nothing_of_a_solve_stays_on_the_module():
    torch.manual_seed(0)
    ode = NeuralODE(TimeMLP(2, 4), gradient="gq")
    before = dict(vars(ode))
    first, second = ode(torch.randn(3, 2)), ode(torch.randn(3, 2))  # two solves alive at once
    first.sum().backward()
    second.sum().backward()
    assert dict(vars(ode)) == before


def test_solve_gives_times_states_and_statistics():
    solution = NeuralODE(TimeMLP(2, 4), gradient="discrete", span=(0.0, 2.0)).solve(torch.randn(3, 2))
    assert solution.ys.shape == (2, 3, 2) and solution.ts.tolist() == [0.0, 2.0]
    assert solution.stats.forward_evaluations > 0
