"""The backward pass differentiates the function that was solved: what modules hold is captured (12.1)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import quadjoint as qj
from trust.changing import (
    Conditioned,
    T,
    gradients,
    in_closure,
    in_method,
    in_module,
    in_object,
    in_partial,
    itself,
    other,
    with_module,
)
from trust.helpers import GRADIENTS, TIGHT, assert_close, cases, normal, tolerance, weigh


def new_condition(net: Conditioned) -> None:
    net.condition = other()


def new_buffer(net: Conditioned) -> None:
    net.offset = other()


def train(net: Conditioned) -> None:
    net.train()


WRAPPERS = (itself, in_closure, in_partial, in_method, in_module, in_object)
CAPTURED = (new_condition, new_buffer, train)


@pytest.mark.parametrize(
    ("change", "wrap", "gradient"),
    cases(CAPTURED, WRAPPERS, GRADIENTS),
)
def test_what_modules_hold_is_captured(change: Any, wrap: Any, gradient: Any) -> None:
    """Tensors and training flags of every module that f holds count as they were in the forward pass."""
    wanted = gradients(with_module(wrap, change), "direct", changed=False)
    assert_close(gradients(with_module(wrap, change), gradient, changed=True), wanted, within=tolerance(gradient))


@pytest.mark.parametrize(
    "gradient",
    cases(GRADIENTS),
)
def test_two_solves_with_two_conditions_before_one_backward_pass(gradient: Any) -> None:
    f, y0, conditions = Conditioned(), normal(8, 3), (normal(3, seed=1), normal(3, seed=2))
    params = list(f.parameters())

    def loss(condition: Tensor, gradient: Any) -> Tensor:
        f.condition = condition
        return weigh(qj.odeint(f, y0, T, gradient=gradient, **TIGHT))

    separate = [torch.autograd.grad(loss(c, "direct"), params) for c in conditions]
    wanted = [a + b for a, b in zip(*separate, strict=True)]
    fresh = Conditioned()
    f, params = fresh, list(fresh.parameters())  # of which nothing is known
    together = loss(conditions[0], gradient) + loss(conditions[1], gradient)
    assert_close(torch.autograd.grad(together, params), wanted, within=tolerance(gradient))


class Learner(nn.Module):
    """A model around a solve whose dynamics hold a part of the model by ``wrap``."""

    def __init__(self, wrap: Any, gradient: Any) -> None:
        super().__init__()
        self.net, self.wrap, self.gradient = Conditioned(), wrap, gradient

    def forward(self, y0: Tensor) -> Tensor:
        return weigh(qj.odeint(self.wrap(self.net), y0, T, gradient=self.gradient, **TIGHT))


def meta_gradient(wrap: Any, gradient: Any) -> list[Tensor]:
    """The gradient of a loss after one step of training (MAML), whose weights are put in by functional_call."""
    model = Learner(wrap, gradient)
    names, params = zip(*model.named_parameters(), strict=True)
    inner = torch.autograd.grad(model(normal(4, 3)), params, create_graph=True)
    fast = dict(zip(names, (p - 0.02 * g for p, g in zip(params, inner, strict=True)), strict=True))
    return list(torch.autograd.grad(functional_call(model, fast, (normal(4, 3, seed=1),)), params))


@pytest.mark.parametrize(
    ("wrap", "gradient"),
    cases((itself, in_closure, in_partial, in_method), GRADIENTS),
)
def test_weights_put_in_by_functional_call_are_those_of_the_solve(wrap: Any, gradient: Any) -> None:
    wanted = meta_gradient(wrap, "direct")
    assert_close(meta_gradient(wrap, gradient), wanted, within=tolerance(gradient))
