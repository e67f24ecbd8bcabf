"""Second derivatives through every method: Hessian-vector products, gradient penalties."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from gradient.helpers import ALL, TIGHT, Driven, loss, normal, relative, times

T = times(0.0, 0.4, 1.0)
METHODS: tuple[Any, ...] = (
    *ALL,
    "auto",
    qj.DiscreteAdjoint(keep="states"),
    qj.DiscreteAdjoint(max_states=2),
    qj.GaussLegendre(rtol=1e-6),
    qj.QuadratureAdjoint(qj.PerStep()),
)


def hessian_product(f: Driven, y0: Tensor, t: Tensor, how: Any, method: str = "dopri5", **options: Any) -> list[Tensor]:
    """The product of a fixed vector with the Hessian in y0, t and the parameters."""
    y0, t = y0.clone().requires_grad_(), t.clone().requires_grad_()
    inputs = (y0, t, *f.parameters())
    ys = qj.odeint(f, y0, t, gradient=how, method=method, **options)
    first = torch.autograd.grad(loss(ys), inputs, create_graph=True)
    vectors = [normal(*x.shape, seed=i) for i, x in enumerate(inputs)]
    product = sum(((g * v).sum() for g, v in zip(first, vectors, strict=True)), torch.zeros(()))
    return list(torch.autograd.grad(product, inputs))


def difference_product(f: Driven, y0: Tensor, t: Tensor, h: float = 1e-5) -> list[Tensor]:
    """The same by central differences of first derivatives."""
    base = [y0, t, *(p.detach().clone() for p in f.parameters())]
    vectors = [normal(*x.shape, seed=i) for i, x in enumerate(base)]

    def gradient(sign: float) -> list[Tensor]:
        moved = [(x + sign * h * v).requires_grad_() for x, v in zip(base, vectors, strict=True)]
        names = [name for name, _ in f.named_parameters()]

        def call(s: Tensor, y: Tensor) -> Tensor:
            return torch.func.functional_call(f, dict(zip(names, moved[2:], strict=True)), (s, y))

        ys = qj.odeint(call, moved[0], moved[1], gradient="direct", rtol=1e-11, atol=1e-11)
        return list(torch.autograd.grad(loss(ys), moved))

    return [(a - b) / (2 * h) for a, b in zip(gradient(1.0), gradient(-1.0), strict=True)]


@pytest.mark.parametrize("how", METHODS)
def test_hessian_products_are_those_of_finite_differences(how: Any) -> None:
    f, y0 = Driven(), normal(2, 3)
    assert relative(hessian_product(f, y0, T, how, **TIGHT), difference_product(f, y0, T)) < 1e-6


@pytest.mark.parametrize("how", METHODS)
def test_hessian_products_are_direct_s_also_at_loose_tolerances(how: Any) -> None:
    """To rounding where the method is exact, else to the accuracy of its own gradient, of which there is one part."""
    f, y0 = Driven(), normal(2, 3)
    reference = hessian_product(f, y0, T, "direct", rtol=1e-3, atol=1e-3)
    exact = how in ("direct", "discrete", "auto") or isinstance(how, qj.DiscreteAdjoint)
    found = hessian_product(f, y0, T, how, rtol=1e-3, atol=1e-3)
    assert relative(found, reference) < (1e-10 if exact else 0.1 if how == "gq-paper" else 1e-2)


@pytest.mark.parametrize("how", [*ALL, "reversible"])
def test_hessian_products_on_a_fixed_grid(how: str) -> None:
    f, y0 = Driven(), normal(2, 3)
    method = "alf" if how == "reversible" else "rk4"
    options = {"step_size": 0.2}
    continuous = how not in ("direct", "discrete")
    reference = hessian_product(f, y0, T, "direct", method, options=options)
    found = hessian_product(f, y0, T, how, method, options=options)
    # Continuous methods differentiate the flow in the times, direct and discrete the steps.
    chosen = (0, *range(2, len(found))) if continuous else range(len(found))
    assert relative([found[i] for i in chosen], [reference[i] for i in chosen]) < (0.05 if continuous else 1e-10)


@pytest.mark.parametrize("how", ALL)
def test_a_gradient_penalty_is_differentiated(how: str) -> None:
    """d/dtheta of |dL/dy0|^2, as in the regularisation of flows."""
    f, y0 = Driven(), normal(2, 3).requires_grad_()

    def penalty(how: str) -> list[Tensor]:
        ys = qj.odeint(f, y0, T, gradient=how, rtol=1e-6, atol=1e-6)
        (g,) = torch.autograd.grad(loss(ys), y0, create_graph=True)
        return list(torch.autograd.grad(g.square().sum(), list(f.parameters())))

    assert relative(penalty(how), penalty("direct")) < (1e-9 if how in ("direct", "discrete") else 1e-3)


@pytest.mark.parametrize("how", ["direct", "discrete", "gq"])
def test_third_derivatives(how: str) -> None:
    a = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    z = qj.odeint(lambda t, z: a * z, torch.ones(1, dtype=torch.float64), times(0.0, 2.0), gradient=how, **TIGHT)
    value = z[-1].sum()
    for order in range(1, 4):  # z(2) = exp(2 a)
        (value,) = torch.autograd.grad(value, a, create_graph=True)
        assert value.item() == pytest.approx(2.0**order * math.exp(0.6), rel=1e-5)


@pytest.mark.parametrize("how", ALL)
def test_an_initial_state_that_depends_on_parameters_and_times_of_the_solve(how: str) -> None:
    """Gradients with create_graph are those without, also where what is differentiated in depends on each other."""
    f, t = Driven(), T.clone().requires_grad_()
    inputs = (t, *f.parameters())

    def found(create_graph: bool) -> tuple[Tensor, ...]:
        y0 = torch.tanh(f.net[0].weight[:3]) * torch.cos(t[1])
        ys = qj.odeint(f, y0, t, gradient=how, **TIGHT)
        return torch.autograd.grad(loss(ys), inputs, create_graph=create_graph)

    assert relative([g.detach() for g in found(True)], found(False)) < (1e-3 if how == "gq-paper" else 1e-6)


@pytest.mark.parametrize("how", ["direct", "discrete"])
@pytest.mark.parametrize("options", [{}, {"step_size": 0.15}])
def test_times_on_a_grid_are_not_counted_twice(how: str, options: dict[str, float]) -> None:
    f, y0, t = Driven(), normal(2, 3).requires_grad_(), T.clone().requires_grad_()

    def found(create_graph: bool) -> tuple[Tensor, ...]:
        ys = qj.odeint(f, y0, t, gradient=how, method="rk4", options=options)
        return torch.autograd.grad(loss(ys), (y0, t), create_graph=create_graph)

    assert relative([g.detach() for g in found(True)], found(False)) < 1e-12


@pytest.mark.parametrize("gradient", ["gq", "adjoint", "auto"])
def test_steps_that_cannot_be_recorded_have_no_second_derivative(gradient: str) -> None:
    """SciPy's steps are no operations of torch: a first derivative is there, a second is refused in words."""
    w = torch.tensor(0.5, requires_grad=True)
    t, options = torch.tensor([0.0, 1.0]), {"solver": "RK45"}

    def end() -> torch.Tensor:
        y0 = torch.ones(1, dtype=torch.float64)
        ys = qj.odeint(lambda t, y: -w * y, y0, t, method="scipy_solver", options=options, gradient=gradient)
        return ys[-1].sum()

    assert torch.autograd.grad(end(), w)[0].item() == pytest.approx(-math.exp(-0.5), rel=1e-2)
    with pytest.raises(ValueError, match=r"create_graph=True needs steps that autograd can record.*scipy_solver"):
        torch.autograd.grad(end(), w, create_graph=True)
