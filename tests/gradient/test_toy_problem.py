"""The toy problem of the paper: dz/dt = a z, L = z(T)^2, every gradient of which is known.

With z(T) = z0 exp(a (T - t0)): dL/dz0 = 2 L / z0, dL/da = 2 (T - t0) L, dL/dT = 2 a L = -dL/dt0.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from gradient.helpers import ALL, times

A, Z0, TOLERANCE = 0.2, 10.0, 1e-6


def found(how: str | qj.Gradient, end: float, **options: Any) -> tuple[float, list[Tensor]]:
    a = torch.tensor(A, dtype=torch.float64, requires_grad=True)
    z0 = torch.tensor([Z0], dtype=torch.float64, requires_grad=True)
    t = times(0.0, end).requires_grad_()
    z = qj.odeint(lambda t, z: a * z, z0, t, gradient=how, rtol=TOLERANCE, atol=TOLERANCE, **options)
    loss = z[-1].square().sum()
    return float(loss.detach()), list(torch.autograd.grad(loss, (z0, a, t)))


def errors(how: str | qj.Gradient, end: float, **options: Any) -> list[float]:
    """Relative errors of the loss and its gradients in z0, a, t0 and T."""
    exact = Z0**2 * math.exp(2 * A * end)
    loss, (in_z0, in_a, in_t) = found(how, end, **options)
    values = (loss, float(in_z0), float(in_a), float(in_t[0]), float(in_t[1]))
    right = (exact, 2 * exact / Z0, 2 * end * exact, -2 * A * exact, 2 * A * exact)
    return [abs(value / wanted - 1) for value, wanted in zip(values, right, strict=True)]


@pytest.mark.parametrize("end", range(19, 30))
@pytest.mark.parametrize("how", ALL)
def test_all_gradients_are_the_exact_ones(how: str, end: int) -> None:
    assert max(errors(how, float(end))) < 20 * TOLERANCE


@pytest.mark.parametrize("end", [19, 24, 29])
def test_reversible_gradients_are_the_exact_ones_to_the_order_of_its_method(end: int) -> None:
    coarse = max(errors("reversible", float(end), method="alf", options={"step_size": 0.1}))
    fine = max(errors("reversible", float(end), method="alf", options={"step_size": 0.05}))
    assert fine < 2e-3
    assert fine < coarse / 3.5  # the method is of order two


@pytest.mark.parametrize("end", range(19, 30))
def test_the_paper_s_gradient_equals_the_adjoint_s(end: int) -> None:
    paper, adjoint = found("gq-paper", float(end))[1], found("adjoint", float(end))[1]
    for a, b in zip(paper, adjoint, strict=True):
        assert torch.allclose(a, b, rtol=10 * TOLERANCE, atol=0.0)


def test_the_paper_s_method_uses_a_tenth_of_the_evaluations_as_nodes() -> None:
    a = torch.tensor(A, dtype=torch.float64, requires_grad=True)
    sol = qj.solve(lambda t, z: a * z, times(Z0), times(0.0, 20.0), gradient="gq-paper", rtol=1e-6, atol=1e-6)
    assert sol.stats.quadrature_nodes == 0
    sol.ys[-1].sum().backward()
    assert sol.stats.quadrature_nodes == math.ceil(0.1 * sol.stats.forward_evaluations)
    assert sol.stats.vjp_params <= sol.stats.quadrature_nodes
