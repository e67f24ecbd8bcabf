"""The correction between Itô and Stratonovich, and the shapes of the four noise types."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from quadjoint.sde import NeuralSDE

B, D, M = 4, 3, 2
T = torch.tensor(0.3, dtype=torch.float64)


class Diffusion(nn.Module):
    """A small network of (t, y) of the shape that a noise type asks for; every entry depends on all of y."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape
        self.net = nn.Sequential(nn.Linear(D + 1, 8), nn.Tanh(), nn.Linear(8, torch.Size(shape).numel()))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        out = self.net(torch.cat([y, t.expand(*y.shape[:-1], 1)], dim=-1))
        return out.reshape(*y.shape[:-1], *self.shape)


SHAPES = {"diagonal": (D,), "scalar": (D, 1), "general": (D, M)}


def drift(t: Tensor, y: Tensor) -> Tensor:
    return torch.sin(y)


def make(noise_type: str, sde_type: str = "ito") -> NeuralSDE:
    torch.manual_seed(0)
    return NeuralSDE(drift, Diffusion(*SHAPES[noise_type]), noise_type, sde_type).double()  # type: ignore[arg-type]


def states() -> Tensor:
    return torch.randn(B, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def correction_from_the_definition(sde: NeuralSDE, y: Tensor) -> Tensor:
    """1/2 Σ_{j,k} g_kj ∂g_ij/∂y_k, sample by sample, with the whole Jacobian."""

    def matrix(row: Tensor) -> Tensor:
        g = sde.g(T, row)
        return torch.diag_embed(g) if sde.noise_type == "diagonal" else g

    rows = []
    for row in y:
        jacobian = torch.autograd.functional.jacobian(matrix, row, create_graph=True)  # (d, m, d)
        rows.append(0.5 * torch.einsum("kj,ijk->i", matrix(row), jacobian))
    return torch.stack(rows)


@pytest.mark.parametrize("noise_type", SHAPES)
def test_correction_is_the_definition_and_so_are_its_gradients(noise_type: str) -> None:
    sde, y = make(noise_type), states().requires_grad_()
    value, exact = sde.correction(T, y), correction_from_the_definition(sde, y)
    torch.testing.assert_close(value, exact)
    wanted = [y, *sde.parameters()]
    weights = torch.linspace(-1, 1, B * D, dtype=torch.float64).reshape(B, D)
    for a, b in zip(
        torch.autograd.grad((weights * value).sum(), wanted),
        torch.autograd.grad((weights * exact).sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("noise_type", SHAPES)
def test_converted_drift_under_no_grad_and_vmap(noise_type: str) -> None:
    sde = make(noise_type).converted("stratonovich")
    times = torch.linspace(0, 1, 5, dtype=torch.float64)
    ys = torch.stack([states() + i for i in range(5)])
    loop = torch.stack([sde.f(t, y) for t, y in zip(times, ys, strict=True)])
    with torch.no_grad():
        torch.testing.assert_close(sde.f(times[2], ys[2]), loop[2].detach())
        torch.testing.assert_close(torch.func.vmap(sde.f)(times, ys), loop.detach())
    torch.testing.assert_close(torch.func.vmap(sde.f)(times, ys), loop)


def test_elementwise_shortcut_gives_the_same() -> None:
    def g(t: Tensor, y: Tensor) -> Tensor:
        return torch.sin(y) * y + t

    slow, quick = (NeuralSDE(drift, g, sde_type="ito", elementwise=e).converted("stratonovich") for e in (0, 1))
    torch.testing.assert_close(quick.f(T, states()), slow.f(T, states()))


def test_additive_noise_needs_no_correction() -> None:
    sde = NeuralSDE(drift, lambda t, y: y.new_ones(B, D, M), "additive", "ito")
    torch.testing.assert_close(sde.converted("stratonovich").f(T, states()), drift(T, states()))


@pytest.mark.parametrize("noise_type", SHAPES)
def test_conversion_shares_weights_and_undoes_itself(noise_type: str) -> None:
    sde, y = make(noise_type), states()
    other = sde.converted("stratonovich")
    assert {id(p) for p in other.parameters()} == {id(p) for p in sde.parameters()}
    assert sde.converted("ito") is sde
    assert not torch.allclose(other.f(T, y), sde.f(T, y))
    torch.testing.assert_close(other.converted("ito").f(T, y), sde.f(T, y))


@pytest.mark.parametrize(
    ("noise_type", "shape", "expected"),
    [
        ("diagonal", (B, D, M), r"diagonal noise needs \(4, 3\)"),
        ("diagonal", (B, 1), r"diagonal noise needs \(4, 3\)"),
        ("scalar", (B, D), r"scalar noise needs \(4, 3, 1\)"),
        ("scalar", (B, D, M), r"scalar noise needs \(4, 3, 1\)"),
        ("additive", (D, M), r"additive noise needs \(4, 3, m\)"),
        ("general", (B, M, D + 1), r"general noise needs \(4, 3, m\)"),
    ],
)
def test_diffusion_of_the_wrong_shape_is_refused(noise_type: str, shape: tuple[int, ...], expected: str) -> None:
    sde = NeuralSDE(drift, lambda t, y: y.new_ones(shape), noise_type)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=expected):
        sde.g(T, states())


def test_unknown_types_are_refused_with_a_hint() -> None:
    with pytest.raises(ValueError, match="Did you mean 'diagonal'"):
        NeuralSDE(drift, drift, "diagnal")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Did you mean 'ito'"):
        NeuralSDE(drift, drift, sde_type="itoo")  # type: ignore[arg-type]
