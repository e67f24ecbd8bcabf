"""What is differentiated: initial states of any structure, all times, and whatever parameters f depends on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from gradient.helpers import ALL, CONTINUOUS, EXACT, TIGHT, Driven, Network, gradients, loss, normal, relative, times
from problems import PROBLEMS, agree
from problems import gradients as problem_gradients

T = times(0.0, 0.3, 0.35, 1.2)
REFERENCE: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-11}


@pytest.mark.parametrize("turn", [1.0, -1.0])
@pytest.mark.parametrize("how", ALL)
@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_gradients_are_those_of_the_closed_form(name: str, how: str, turn: float) -> None:
    """In the initial state (real, complex, a tuple), every time and the parameters, forwards and backwards in time."""
    problem = PROBLEMS[name]()
    nodes = {"gq-paper": qj.QuadratureAdjoint(qj.Heuristic(1.0))}
    exact = problem_gradients(problem, problem.exact, turn * T)
    found = problem_gradients(
        problem, lambda y0, t: qj.odeint(problem, y0, t, gradient=nodes.get(how, how), **TIGHT), turn * T
    )
    assert agree(found, exact, 2e-6)


@pytest.mark.parametrize("method", ["dopri5", "rk4", "midpoint"])
@pytest.mark.parametrize("how", ["direct", "discrete"])
def test_time_gradients_of_exact_methods_are_those_of_finite_differences(how: str, method: str) -> None:
    f, y0 = Driven(), normal(2, 3)
    options = REFERENCE if method == "dopri5" else {"options": {"step_size": 0.25}}

    def value(t: Tensor) -> float:
        with torch.no_grad():
            return float(loss(qj.odeint(f, y0, t, method=method, **options)))

    found = gradients(f, y0, T, how, method=method, **options)[1]
    h = 1e-5
    differences = [(value(T + h * e) - value(T - h * e)) / (2 * h) for e in torch.eye(4, dtype=torch.float64)]
    assert relative([found], [torch.tensor(differences, dtype=torch.float64)]) < 1e-6


@pytest.mark.parametrize("how", ALL)
def test_one_time_only(how: str) -> None:
    y0, t = normal(2, 3).requires_grad_(), times(0.75).requires_grad_()
    ys = qj.odeint(Network(), y0, t, gradient=how)
    in_y0, in_t = torch.autograd.grad(ys.square().sum(), (y0, t))
    assert torch.equal(in_y0, 2 * y0)
    assert torch.equal(in_t, times(0.0))


@pytest.mark.parametrize("how", ALL)
def test_observations_without_influence_and_those_of_the_initial_state(how: str) -> None:
    f, y0 = Driven(), normal(2, 3)
    last = gradients(f, y0, T, how, loss=lambda ys: ys[0].square().sum())
    assert torch.allclose(last[0], 2 * y0, rtol=0, atol=1e-14)
    assert all(float(g.abs().max()) < 1e-14 for g in last[1:])
    reference = gradients(f, y0, T, "direct", loss=lambda ys: ys[1].square().sum(), **REFERENCE)
    found = gradients(f, y0, T, how, loss=lambda ys: ys[1].square().sum(), **TIGHT)
    assert relative(found, reference) < (1e-3 if how == "gq-paper" else 1e-6)
    assert float(found[1][2:].abs().max()) == 0.0


class Parts(nn.Module):
    """Parameters that are used, shared between layers, frozen, not used; a buffer."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.second = (nn.Linear(3, 3).double() for _ in range(2))
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(normal(3), requires_grad=False)
        self.unused = nn.Parameter(normal(2))
        self.register_buffer("scale", normal(3))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(self.first(y) + self.frozen) + self.scale * torch.tanh(self.second(y))


@pytest.mark.parametrize("how", ALL)
def test_shared_frozen_and_unused_parameters_and_buffers(how: str) -> None:
    f, y0 = Parts(), normal(4, 3)
    wrt = (f.first.weight, f.first.bias, f.second.bias)
    reference = gradients(f, y0, T, "direct", wrt, **REFERENCE)
    assert relative(gradients(f, y0, T, how, wrt, **TIGHT), reference) < (1e-3 if how == "gq-paper" else 1e-6)
    ys = qj.odeint(f, y0, T, gradient=how)
    loss(ys).backward()
    assert f.frozen.grad is None
    assert f.scale.grad is None
    assert f.unused.grad is None or float(f.unused.grad.abs().max()) == 0.0
    assert f.first.weight.grad is f.second.weight.grad is not None


@pytest.mark.parametrize("how", ALL)
def test_a_buffer_that_requires_grad_is_differentiated_in(how: str) -> None:
    f = Parts()
    f.scale.requires_grad_()
    reference = gradients(f, normal(4, 3), T, "direct", [f.scale], **REFERENCE)
    assert relative(gradients(f, normal(4, 3), T, how, [f.scale], **TIGHT), reference) < 1e-5


@pytest.mark.parametrize("how", ALL)
def test_all_parameters_frozen(how: str) -> None:
    f = Network().requires_grad_(False)
    y0 = normal(4, 3)
    (reference,) = gradients(f, y0, T, "direct", [], **REFERENCE)[:1]
    assert relative(gradients(f, y0, T, how, [], **TIGHT)[:1], [reference]) < 1e-6
    assert not qj.odeint(f, y0, T, gradient=how).requires_grad


@pytest.mark.parametrize("how", ALL)
def test_parameters_are_differentiated_where_the_initial_state_is_not(how: str) -> None:
    f, y0 = Driven(), normal(4, 3)
    reference = gradients(f, y0, T, "direct", **REFERENCE)[2:]
    ys = qj.odeint(f, y0, T, gradient=how, **TIGHT)
    found = torch.autograd.grad(loss(ys), list(f.parameters()))
    assert relative(found, reference) < (1e-3 if how == "gq-paper" else 1e-6)


@pytest.mark.parametrize("how", ALL)
def test_dynamics_without_parameters_that_do_not_depend_on_the_state(how: str) -> None:
    def f(t: Tensor, y: Tensor) -> Tensor:
        return torch.cos(t).expand(y.shape)

    y0, t = normal(2), times(0.0, 1.0)
    found = gradients(f, y0, t, how, loss=lambda ys: ys[-1].sum())
    assert torch.allclose(found[0], torch.ones_like(y0), rtol=0, atol=1e-14)
    assert torch.allclose(found[1], 2 * torch.tensor([-1.0, torch.cos(times(1.0))]), rtol=1e-12)


@pytest.mark.parametrize("how", ALL)
def test_leaf_tensors_of_closures_are_found(how: str) -> None:
    w, b, unused = (normal(*s, seed=i).requires_grad_() for i, s in enumerate(((3, 3), (3,), (3,))))
    y0 = normal(4, 3)

    def f(t: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(y @ w + b) * torch.cos(t)

    reference = gradients(f, y0, T, "direct", [w, b], **REFERENCE)
    found = gradients(f, y0, T, how, [w, b], **TIGHT)
    assert relative(found, reference) < (1e-3 if how == "gq-paper" else 1e-6)
    qj.odeint(f, y0, T, gradient=how).sum().backward()
    assert unused.grad is None


@pytest.mark.parametrize("how", ALL)
def test_bound_methods_and_lambdas_over_modules(how: str) -> None:
    f, y0 = Network(), normal(4, 3)
    reference = gradients(f, y0, T, "direct", **REFERENCE)
    wrt = tuple(f.parameters())
    for call in (f.forward, lambda t, y: f(t, y)):
        found = gradients(call, y0, T, how, wrt, **TIGHT)
        assert relative(found, reference) < (1e-3 if how == "gq-paper" else 1e-6)


@pytest.mark.parametrize("how", ALL)
def test_tensors_computed_outside_of_f_are_given_as_params(how: str) -> None:
    w, y0 = normal(3, 3).requires_grad_(), normal(4, 3)

    def result(how: str, **options: Any) -> list[Tensor]:
        weight = 0.2 * w.exp()
        return gradients(lambda t, y: torch.tanh(y @ weight), y0, T, how, [w], **options)

    reference = result("direct", **REFERENCE)
    weight = 0.2 * w.exp()
    y = y0.clone().requires_grad_()
    ys = qj.odeint(lambda t, y: torch.tanh(y @ weight), y, T, gradient=how, params=[weight], **TIGHT)
    found = torch.autograd.grad(loss(ys), (y, w))
    assert relative(found, (reference[0], reference[2])) < (1e-3 if how == "gq-paper" else 1e-6)


@pytest.mark.parametrize("how", [*ALL, *(qj.DiscreteAdjoint(mode=m) for m in ("joint", "stacked"))])
def test_a_condition_from_an_encoder_is_differentiated_through(how: str | qj.Gradient) -> None:
    """The graph of a tensor that f closes over is used by every product, and again by the rest of the loss."""
    f, y0, x, weight = Driven(), normal(40, 3), normal(40, 3, seed=3), normal(3, 3, seed=4).requires_grad_()
    t = torch.linspace(0.0, 1.0, 12, dtype=torch.float64)

    def found(how: str | qj.Gradient, **options: Any) -> list[Tensor]:
        condition = torch.exp(0.3 * x @ weight)
        ys = qj.odeint(lambda t, y: f(t, y) + torch.tanh(condition), y0, t, gradient=how, **options)
        return list(torch.autograd.grad(loss(ys) + condition.square().sum(), [weight]))

    assert relative(found(how, **TIGHT), found("direct", **REFERENCE)) < (1e-3 if how == "gq-paper" else 1e-6)


@pytest.mark.parametrize("how", ALL)
def test_params_are_differentiated_besides_the_parameters_of_a_module(how: str) -> None:
    """A condition that a module holds as a plain attribute, computed by an encoder."""

    class Conditioned(Network):
        condition: Tensor

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return self.net(y) + torch.tanh(self.condition)

    f, y0, x = Conditioned(), normal(4, 3), normal(4, 3, seed=3).requires_grad_()
    wrt = [x, *f.parameters()]

    def found(how: str, **options: Any) -> list[Tensor]:
        f.condition = x.exp()
        ys = qj.odeint(f, y0, T, gradient=how, params=[f.condition], **options)
        return list(torch.autograd.grad(loss(ys), wrt))

    assert relative(found(how, **TIGHT), found("direct", **REFERENCE)) < (1e-3 if how == "gq-paper" else 1e-6)


class Hamiltonian(nn.Module):
    """dq/dt = dH/dp, dp/dt = -dH/dq: the dynamics differentiate a network themselves."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.energy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        energy = self.energy(y).sum()
        (g,) = torch.autograd.grad(energy, y, create_graph=True)
        return torch.cat([g[..., 2:], -g[..., :2]], dim=-1)


@pytest.mark.parametrize("how", [*ALL, *(qj.DiscreteAdjoint(mode=m) for m in ("joint", "stacked"))])
@pytest.mark.filterwarnings("ignore:The dynamics Hamiltonian:quadjoint.QuadjointWarning")
def test_dynamics_that_differentiate_themselves(how: str | qj.Gradient) -> None:
    f, y0 = Hamiltonian(), normal(5, 4)
    wrt = list(f.parameters())[:-1]  # the derivative of a sum does not depend on its constant
    reference = gradients(f, y0, T, "direct", wrt, **REFERENCE)
    found = gradients(f, y0, T, how, wrt, **TIGHT)
    assert relative(found, reference) < (1e-3 if how == "gq-paper" else 1e-6)


@pytest.mark.parametrize("how", ["gq", qj.DiscreteAdjoint(mode="stacked")])
def test_dynamics_that_cannot_be_stacked_are_evaluated_one_by_one_and_it_is_said_once(how: str | qj.Gradient) -> None:
    class Smooth(Network):
        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return torch.where(t < 0.5, 1.0, 2.0) * self.net(y)

    class Branching(Network):
        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return self.net(y) if float(t) < 0.5 else 2.0 * self.net(y)

    f, y0, options = Branching(), normal(4, 3), {"jump_t": times(0.5)}
    reference = gradients(Smooth(), y0, T, "direct", **REFERENCE, options=options)
    with pytest.warns(qj.QuadjointWarning, match="cannot be evaluated as a stack") as caught:
        found = gradients(f, y0, T, how, **TIGHT, options=options)
        gradients(f, y0, T, how, **TIGHT, options=options)
    assert len(caught) == 1
    assert relative(found, reference) < 1e-6


@pytest.mark.parametrize("how", CONTINUOUS)
@pytest.mark.parametrize("t", [times(0.0, 0.2, 1.0), times(0.0, 0.75, 1.0), times(1.0, 0.75, 0.0)])
def test_continuous_methods_take_the_right_side_of_discontinuities(t: Tensor, how: str) -> None:
    class Switched(Network):
        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            late = (t >= 0.75).to(y)
            return self.net(y) * (1.0 + 4.0 * late) - y * (0.1 - 2.0 * late)

    f, y0 = Switched(), normal(4, 3)
    options = {"jump_t": times(0.75)}
    reference = gradients(f, y0, t, "discrete", **REFERENCE, options=options)
    sol = qj.solve(f, y0, t, gradient=how, **TIGHT, options=options)
    found = torch.autograd.grad(loss(sol.ys), list(f.parameters()))
    assert relative(found, reference[2:]) < (0.3 if how == "gq-paper" else 1e-6)
    # Steps that hit a discontinuity unawares are rejected until they are tiny.
    assert sol.stats.backward_rejected_steps < 12
    sol = qj.solve(f.float(), y0.float(), t.float(), gradient=how, rtol=1e-5, atol=1e-5, options=options)
    single = [g.double() for g in torch.autograd.grad(loss(sol.ys), list(f.parameters()))]
    assert relative(single, reference[2:]) < (0.3 if how == "gq-paper" else 2e-3)
    assert sol.stats.backward_rejected_steps < 12


@pytest.mark.parametrize("how", ALL)
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_times_of_each_sample_are_those_of_separate_solves(method: str, how: str) -> None:
    f, y0 = Driven(), normal(3, 3)
    t = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(1)
    options: dict[str, Any] = {"rtol": 1e-7, "atol": 1e-7} if method == "dopri5" else {"options": {"step_size": 0.02}}
    weights = normal(4, 3, 3, seed=5)
    found = gradients(f, y0, t, how, loss=lambda ys: (weights * ys).sum(), method=method, **options)
    apart = [
        gradients(f, y0[i], t[i], "direct", loss=lambda ys, i=i: (weights[:, i] * ys).sum(), **REFERENCE)
        for i in range(3)
    ]
    reference = [torch.stack([g[0] for g in apart]), torch.stack([g[1] for g in apart])]
    reference += [sum(g) for g in zip(*(g[2:] for g in apart), strict=True)]
    assert relative(found, reference) < (2e-2 if how == "gq-paper" else 1e-5)


def test_the_names_of_the_groups_cover_all_methods() -> None:
    assert {*EXACT, *CONTINUOUS, "auto", "reversible"} == set(qj.GRADIENTS)
