"""Gradients of a CDE in its field, its initial state and the data, which here come from an encoder that is learnt."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
import quadjoint.cde as cde

DTYPE = torch.float64
NAN = float("nan")
KINDS = ["hermite", "natural", "linear", "rectilinear"]
# The quadrature of the paper has as many nodes as its heuristic says, which is no matter of the path.
WITHIN = {"discrete": 1e-12, "gq": 1e-6, "adjoint": 1e-6, "seminorm": 1e-5, "gq-paper": 3e-2}


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, 2, generator=generator, dtype=DTYPE)
    t = (0.2 + torch.rand(4, 5, generator=generator, dtype=DTYPE)).cumsum(1)
    x = torch.where(torch.rand(x.shape, generator=generator, dtype=DTYPE) < 0.25, NAN, x)
    x[:, 0] = 0.5
    t[1, 4:] = t[2, 3:] = NAN
    return x, t


class Model(nn.Module):
    """An encoder of each observation, a path through the codes, a CDE along it."""

    def __init__(self, kind: str, gradient: str, own: bool) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.encode = nn.Linear(2, 2)
            settings: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-8, "gradient": gradient}
            self.cde = qj.nn.NeuralCDE(3, 3, width=6, **settings)
        self.kind, self.own = kind, own
        self.double()

    def forward(self) -> Tensor:
        x, t = data()
        code = torch.where(x.isnan(), NAN, torch.tanh(self.encode(x.nan_to_num())))
        X = cde.interpolate(code, t if self.own else None, kind=self.kind)  # type: ignore[arg-type]
        z = self.cde.trajectory(X, t if self.own else X.interval)
        return (z * torch.linspace(-1, 1, z.numel(), dtype=DTYPE).reshape(z.shape)).sum()

    def gradient(self) -> Tensor:
        found = torch.autograd.grad(self(), list(self.parameters()))
        return torch.cat([part.flatten() for part in found])


@pytest.mark.parametrize(("kind", "own"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in KINDS[:3])])
def test_every_gradient_is_that_of_finite_differences(kind: str, own: bool) -> None:
    model = Model(kind, "direct", own)
    direct, step, numbers = model.gradient(), 1e-4, nn.utils.parameters_to_vector(model.parameters()).detach()
    for entry in (0, 5, 8, len(numbers) - 2):  # weights and biases of the encoder, the start, the field
        losses = []
        for sign in (1.0, -1.0):
            moved = numbers.clone()
            moved[entry] += sign * step
            nn.utils.vector_to_parameters(moved, model.parameters())
            with torch.no_grad():
                losses.append(float(model()))
        assert direct[entry] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-4, abs=1e-5)
    for gradient, within in WITHIN.items():
        found = Model(kind, gradient, own).gradient()
        assert (found - direct).norm() <= within * direct.norm(), gradient


def test_coefficients_can_be_leaves_and_only_some_tensors_be_asked_for() -> None:
    x, _ = data()
    f = cde.MatrixMLP(3, 2, width=4).double()
    coefficients = cde.hermite_cubic_coefficients_with_backward_differences(x).requires_grad_()
    X = cde.CubicSpline(coefficients)
    z0 = torch.ones(4, 3, dtype=DTYPE)
    everything = cde.cdeint(X, f, z0, X.interval).sum()
    wanted = torch.autograd.grad(everything, [coefficients, *f.parameters()])
    assert wanted[0].abs().sum() > 0
    only = cde.cdeint(X, f, z0, X.interval, adjoint_params=[coefficients]).sum()
    torch.testing.assert_close(torch.autograd.grad(only, coefficients, retain_graph=True)[0], wanted[0])
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.autograd.grad(only, list(f.parameters()))


def test_second_derivatives() -> None:
    x, _ = data()
    f = cde.MatrixMLP(3, 3, width=4).double()

    def loss(scale: Tensor, gradient: str) -> Tensor:
        X = cde.interpolate(torch.where(x.isnan(), NAN, x.nan_to_num() * scale), kind="linear")
        z = cde.cdeint(X, f, torch.ones(4, 3, dtype=DTYPE), X.interval, gradient=gradient, rtol=1e-7, atol=1e-7)
        return z[:, -1].square().sum()

    found = []
    for gradient in ("direct", "discrete", "gq"):
        scale = torch.tensor(0.7, dtype=DTYPE, requires_grad=True)
        (first,) = torch.autograd.grad(loss(scale, gradient), scale, create_graph=True)
        found.append(torch.autograd.grad(first, scale)[0])
    for second in found[1:]:
        torch.testing.assert_close(second, found[0], rtol=1e-5, atol=0.0)


def test_the_reversible_method() -> None:
    x, _ = data()
    found = []
    for gradient in ("direct", "reversible"):
        scale = torch.tensor(0.7, dtype=DTYPE, requires_grad=True)
        X = cde.interpolate(torch.where(x.isnan(), NAN, x.nan_to_num() * scale), kind="linear")
        f = lambda t, z: torch.tanh(z).unsqueeze(-1) * torch.tensor([0.1, 0.5, -0.5], dtype=DTYPE)  # noqa: E731
        z0 = torch.ones(4, 3, dtype=DTYPE)
        z = cde.cdeint(X, f, z0, X.interval, method="alf", gradient=gradient, rtol=1e-4, atol=1e-4)
        found.append(torch.autograd.grad(z[:, -1].sum(), scale)[0])
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=0.0)
