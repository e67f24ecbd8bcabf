"""Which tensors are found to be parameters of the dynamics, and that each is counted once."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from quadjoint.solver.problem import Only, find_parameters
from torch import Tensor, nn

import quadjoint as qj
from gradient.helpers import ALL, TIGHT, Network, loss, normal, relative, times
from quadjoint.autograd.leaves import reachable
from quadjoint.solver.dynamics import Dynamics

T = times(0.0, 0.5, 1.0)
GLOBAL = normal(3, seed=7).requires_grad_()
SPACE = types.SimpleNamespace(late=GLOBAL, other=normal(3).requires_grad_())


def tensor(seed: int = 0) -> Tensor:
    return normal(3, seed=seed).requires_grad_()


def names_a_global(t: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(y) * (GLOBAL if t > 0.5 else 1.0)


class Late(nn.Module):
    """Two networks of which a method uses one, and that only at late times; the other belongs to something else."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.other = Network(seed=1), Network(seed=2)

    def field(self, t: Tensor, y: Tensor) -> Tensor:
        return self.helper(t, y) if t > 0.5 else -y

    def helper(self, t: Tensor, y: Tensor) -> Tensor:
        return self.used(t, y)


class CallableObject:
    def __init__(self, w: Tensor) -> None:
        self.w, self.other = w, tensor(9)

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        return -y + (self.w if t > 0.5 else 0.0)


def cases() -> dict[str, tuple[Callable[..., Tensor], list[Tensor]]]:
    """Functions that use a tensor only at late times, and what should be found."""
    w, v, late, net = tensor(1), tensor(2), Late(), Network()
    held, table = types.SimpleNamespace(w=w, v=v), {"w": [w, (v,)]}

    def cell(t: Tensor, y: Tensor) -> Tensor:
        return -y + (w if t > 0.5 else 0.0)

    def default(t: Tensor, y: Tensor, b: Tensor = w) -> Tensor:
        return -y + (b if t > 0.5 else 0.0)

    def with_weight(b: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return -y + (b if t > 0.5 else 0.0)

    def attribute(t: Tensor, y: Tensor) -> Tensor:
        return -y + (held.w if t > 0.5 else 0.0)

    def container(t: Tensor, y: Tensor) -> Tensor:
        return -y + (table["w"][0] * table["w"][1][0] if t > 0.5 else 0.0)

    def inner(t: Tensor, y: Tensor) -> Tensor:
        return (lambda: -y + (w if t > 0.5 else 0.0))()

    def computed(t: Tensor, y: Tensor) -> Tensor:
        return -y + (product if t > 0.5 else 0.0)

    product = w * v
    return {
        "closure": (cell, [w]),
        "default": (default, [w]),
        "partial": (functools.partial(with_weight, w), [w]),
        "attribute": (attribute, [w]),
        "container": (container, [w, v]),
        "inner function": (inner, [w]),
        "computed before": (computed, [w, v]),
        "function in a function": (lambda t, y: cell(t, y), [w]),
        "method": (late.field, list(late.used.parameters())),
        "method in a function": (lambda t, y: late.field(t, y), list(late.used.parameters())),
        "module in a function": (lambda t, y: net(t, y) if t > 0.5 else -y, list(net.parameters())),
        "attribute of a module": (
            lambda t, y: late.used(t, y) if t > 0.5 else -y,
            list(late.used.parameters()),
        ),
        "callable object": (CallableObject(w), [w]),
        "global": (names_a_global, [GLOBAL]),
        "attribute of a global": (lambda t, y: -y + (SPACE.late if t > 0.5 else 0.0), [GLOBAL]),
    }


@pytest.mark.parametrize("name", cases())
def test_tensors_that_are_used_late_are_found(name: str) -> None:
    f, expected = cases()[name]
    y0 = normal(2, 3)
    assert {id(p) for p in reachable(f)} >= {id(p) for p in expected}
    found = find_parameters(f, Dynamics(f, y0), 0.0, y0)
    assert len(found) == len(expected)
    f, expected = cases()[name]
    ys = qj.odeint(f, y0, T, gradient="discrete", **TIGHT)
    given = torch.autograd.grad(loss(ys), expected)
    exact = torch.autograd.grad(loss(qj.odeint(f, y0, T, gradient="direct", **TIGHT)), expected)
    assert relative(given, exact) < 1e-6


@pytest.mark.filterwarnings("ignore:The dynamics function cannot be evaluated as a stack:quadjoint.QuadjointWarning")
@pytest.mark.parametrize("how", ALL)
def test_a_second_network_that_takes_over_later_is_differentiated(how: str) -> None:
    first, second, y0 = Network(seed=1), Network(seed=2), normal(4, 3)
    wrt = [*first.parameters(), *second.parameters()]

    def found(how: str) -> list[Tensor]:
        ys = qj.odeint(lambda t, y: first(t, y) if t < 0.5 else second(t, y), y0, T, gradient=how,
                       options={"jump_t": times(0.5)}, **TIGHT)  # fmt: skip
        return list(torch.autograd.grad(loss(ys), wrt))

    assert relative(found(how), found("direct")) < (1e-3 if how == "gq-paper" else 1e-5)


def test_copies_of_the_state_are_no_parameters() -> None:
    """A function that differentiates in y, or in a copy of it, has its weights for parameters and nothing else."""
    w, y0 = tensor(), normal(4, 3)

    def by_itself(t: Tensor, y: Tensor) -> Tensor:
        return torch.autograd.grad((w * y).square().sum(), y, create_graph=True)[0]

    def in_a_copy(t: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            x = y.detach().requires_grad_()
            return torch.autograd.grad((w * x).square().sum(), x, create_graph=True)[0] - y

    for f in (by_itself, in_a_copy):
        for dynamics in (Dynamics(f, y0), Dynamics(f, y0)):
            for _ in range(2):
                assert [id(p) for p in find_parameters(f, dynamics, 0.0, y0)] == [id(w)]


@pytest.mark.parametrize("how", ALL)
def test_an_attribute_computed_from_a_parameter_is_counted_once(how: str) -> None:
    class Prepared(Network):
        prepared: Tensor

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return self.net(y) + self.prepared

    f, y0 = Prepared(), normal(4, 3)

    def found(how: str, **options: Any) -> list[Tensor]:
        f.prepared = torch.tanh(f.net[2].bias)
        return list(torch.autograd.grad(loss(qj.odeint(f, y0, T, gradient=how, **options)), list(f.parameters())))

    assert relative(found(how, **TIGHT), found("direct", rtol=1e-11, atol=1e-11)) < (
        1e-3 if how == "gq-paper" else 1e-6
    )


def test_params_that_depend_on_each_other_are_counted_once() -> None:
    w, y0 = tensor(), normal(4, 3)

    def found(how: str, given: bool) -> Tensor:
        v = torch.exp(-w)
        params = [w, v] if given else None
        ys = qj.odeint(lambda t, y: torch.tanh(w * y) + v, y0, T, gradient=how, params=params, **TIGHT)
        return torch.autograd.grad(loss(ys), w)[0]

    assert relative([found("discrete", True)], [found("direct", False)]) < 1e-6


@pytest.mark.parametrize("how", ["auto", qj.Auto(memory_limit=0), "discrete", "gq"])
def test_params_come_besides_the_parameters_of_a_module_whatever_the_method(how: str | qj.Gradient) -> None:
    f, y0, extra = Network(), normal(4, 3), tensor()
    held = [extra]  # out of the sight of autograd's modules
    f.forward = lambda t, y: f.net(y) + held[0]  # type: ignore[method-assign]
    ys = qj.odeint(f, y0, T, gradient=how, params=[extra], **TIGHT)
    found = torch.autograd.grad(loss(ys), [extra, *f.parameters()])
    exact = torch.autograd.grad(loss(qj.odeint(f, y0, T, gradient="direct", **TIGHT)), [extra, *f.parameters()])
    assert relative(found, exact) < 1e-5


def test_only_means_no_others() -> None:
    f, y0 = Network(), normal(4, 3)
    weight = f.net[0].weight
    assert find_parameters(f, Dynamics(f, y0), 0.0, y0, Only([weight])) == (weight,)
    assert find_parameters(f, Dynamics(f, y0), 0.0, y0, Only()) == ()
