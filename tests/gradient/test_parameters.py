"""Which tensors are found to be parameters of the dynamics, and that each is counted once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from gradient.helpers import ALL, TIGHT, Network, loss, normal, relative, times
from quadjoint.arrange import arrange
from quadjoint.autograd.captured import Snapshot
from quadjoint.gradient.first import First, Only

T = times(0.0, 0.5, 1.0)


def tensor(seed: int = 0) -> Tensor:
    return normal(3, seed=seed).requires_grad_()


def parameters(f: Callable[..., Any], y0: Tensor, given: Sequence[Tensor] | None = None) -> tuple[Tensor, ...]:
    """What a solve would be differentiated in."""
    arranged = arrange(
        f, y0, T, method="dopri5", rtol=1e-3, atol=1e-3, options=None, event_fn=None, compile=False, exact_clock=False
    )
    return First.record(arranged.spec, arranged.y0, Snapshot(f, y0.device), given).params


@pytest.mark.filterwarnings("ignore:The dynamics function cannot be evaluated as a stack:quadjoint.QuadjointWarning")
@pytest.mark.parametrize("how", ALL)
def test_a_second_network_that_takes_over_later_and_is_named_is_differentiated(how: str) -> None:
    first, second, y0 = Network(seed=1), Network(seed=2), normal(4, 3)
    wrt = [*first.parameters(), *second.parameters()]

    def found(how: str) -> list[Tensor]:
        ys = qj.odeint(
            lambda t, y: first(t, y) if t < 0.5 else second(t, y),
            y0,
            T,
            gradient=how,
            options={"jump_t": times(0.5)},
            params=list(second.parameters()),
            **TIGHT,
        )
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
        for _ in range(2):
            assert [id(p) for p in parameters(f, y0)] == [id(w)]


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
    assert parameters(f, y0, Only([weight])) == (weight,)
    assert parameters(f, y0, Only()) == ()
