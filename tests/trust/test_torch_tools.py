"""Torch's own tools around a solve: autocast, batches of gradients, sparse and lazy parameters; tableaus (20.5)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from trust.helpers import (
    DTYPE,
    GRADIENTS,
    TIGHT,
    Field,
    assert_close,
    cases,
    normal,
    right_or_refused,
    times,
    tolerance,
    weigh,
)


@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_autocast_around_the_forward_pass_alone(gradient: Any) -> None:
    """As torch advises: the backward pass runs outside of autocast."""
    found = []
    for lower in (False, True):
        f, y0 = Field(dtype=torch.float32), normal(4, 3, dtype=torch.float32).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=lower):
            ys = qj.odeint(f, y0, torch.tensor([0.0, 1.0]), gradient=gradient, rtol=1e-2, atol=1e-2)
        found.append(torch.autograd.grad(weigh(ys), [y0, *f.parameters()]))
    assert_close(found[1], found[0], within=5e-2)


@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_vectorised_jacobians_are_right_or_refused_in_words(gradient: Any) -> None:
    f = Field()

    def compute(gradient: Any, vectorize: bool) -> list[Tensor]:
        end = lambda y: qj.odeint(f, y, times(0.0, 1.0), gradient=gradient, **TIGHT)[-1]  # noqa: E731
        return [torch.autograd.functional.jacobian(end, normal(2, 3), vectorize=vectorize)]

    wanted = compute("direct", vectorize=False)
    right_or_refused(
        lambda: compute(gradient, vectorize=True), wanted, within=tolerance(gradient), words="is_grads_batched"
    )


@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_batches_of_gradients_are_right_or_refused_in_words(gradient: Any) -> None:
    f, y0, seeds = Field(), normal(2, 3).requires_grad_(), torch.eye(6, dtype=DTYPE).reshape(6, 2, 3)
    wanted = [
        torch.stack([torch.autograd.grad(ys, y0, seed, retain_graph=True)[0] for seed in seeds])
        for ys in [qj.odeint(f, y0, times(0.0, 1.0), gradient="direct", **TIGHT)[-1]]
    ]

    def compute() -> list[Tensor]:
        ys = qj.odeint(f, y0, times(0.0, 1.0), gradient=gradient, **TIGHT)[-1]
        return list(torch.autograd.grad(ys, y0, seeds, is_grads_batched=True))

    right_or_refused(compute, wanted, within=tolerance(gradient), words="is_grads_batched")


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.diag(times(-1.0, -0.5, 0.3)).to_sparse())

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.sparse.mm(self.weight, y.T).T


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # vmap of sparse products
@pytest.mark.parametrize(
    "gradient",
    cases(GRADIENTS),
)
def test_a_sparse_parameter_has_a_gradient(gradient: Any) -> None:
    f = Sparse()
    ys = qj.odeint(f, torch.ones(1, 3, dtype=DTYPE), times(0.0, 1.0), gradient=gradient, **TIGHT)
    (found,) = torch.autograd.grad(ys[-1].sum(), f.weight)
    wanted = torch.diag(torch.exp(times(-1.0, -0.5, 0.3)))
    found = found.to_dense() if found.is_sparse else found
    assert_close([found.diagonal()], [wanted.diagonal()], within=1e-3)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize(
    "gradient",
    cases(GRADIENTS),
)
def test_a_lazy_module_is_initialised_by_its_first_solve(gradient: Any) -> None:
    f = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(3)).double()

    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = f

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return self.net(y)

    module = Lazy()
    loss = weigh(qj.odeint(module, normal(2, 3), times(0.0, 1.0), gradient=gradient, **TIGHT))
    found = torch.autograd.grad(loss, list(f.parameters()))
    wanted = torch.autograd.grad(
        weigh(qj.odeint(module, normal(2, 3), times(0.0, 1.0), gradient="direct", **TIGHT)), list(f.parameters())
    )
    assert_close(found, wanted, within=tolerance(gradient))


@pytest.mark.parametrize("name", ["dopri5", "rk4"])
def test_a_tableau_without_dense_output_is_accepted_or_refused_in_words(name: str) -> None:
    try:
        tableau = dataclasses.replace(qj.TABLEAUS[name], name=f"{name} without", dense=None)
    except (TypeError, ValueError) as error:
        assert "dense" in str(error)
    else:
        assert tableau.dense is None or tableau.dense.ndim == 2
