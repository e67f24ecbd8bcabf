"""The correction between Itô and Stratonovich, and the shapes of the four noise types."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from quadjoint.autograd.recorded import record_and_count
from quadjoint.sde import NeuralSDE, WongZakai

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


@pytest.mark.parametrize("noise_type", SHAPES)
def test_correction_is_the_same_where_saved_tensors_are_watched(noise_type: str) -> None:
    """In offloading and in a checkpoint, which torch.func refuses; with and without grad."""
    sde, y = make(noise_type), states().requires_grad_()
    wanted = [y, *sde.parameters()]
    exact = torch.autograd.grad(sde.correction(T, y).square().sum(), wanted)
    with torch.autograd.graph.save_on_cpu():
        offloaded = sde.correction(T, y)
        with torch.no_grad():
            plain = sde.correction(T, y)
    assert not plain.requires_grad
    torch.testing.assert_close(plain, offloaded.detach())
    inside = checkpoint(lambda y: sde.correction(T, y), y, use_reentrant=False)
    for value in (offloaded, inside):
        for a, b in zip(torch.autograd.grad(value.square().sum(), wanted), exact, strict=True):
            torch.testing.assert_close(a, b)


def test_correction_of_noise_that_is_the_same_everywhere_is_zero_where_saved_tensors_are_watched() -> None:
    sde = NeuralSDE(drift, lambda t, y: torch.ones_like(y), sde_type="ito")
    with torch.autograd.graph.save_on_cpu():
        assert not sde.correction(T, states()).any()


@pytest.mark.parametrize("noise_type", SHAPES)
@pytest.mark.parametrize("gradient", ["auto", "direct", "discrete", "gq", "adjoint"])
def test_a_solve_in_a_checkpoint(gradient: str, noise_type: str) -> None:
    """Has the gradient of one outside, and is made twice, however many evaluations it has."""
    sde = make(noise_type)
    calls = [0]

    def counting(t: Tensor, y: Tensor) -> Tensor:
        calls[0] += 1
        return drift(t, y)

    sde.drift = counting
    equation = WongZakai(sde, 0.0, 1.0, terms=3)
    found, counts = [], []
    for inside in (False, True):
        y, calls[0] = states().requires_grad_(), 0
        solve = lambda y: equation.odeint(  # noqa: E731
            y, torch.linspace(0, 1, 2), seed=0, gradient=gradient, rtol=1e-5, atol=1e-5
        )[-1]
        end = checkpoint(solve, y, use_reentrant=False) if inside else solve(y)
        found.append(torch.autograd.grad(end.square().sum(), [y, *sde.parameters()]))
        counts.append(calls[0])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert counts[1] <= 3 * counts[0] + 3


def test_activations_of_the_correction_are_counted() -> None:
    """The double transpose keeps more than the drift alone."""
    counted = {}
    for kind in ("ito", "stratonovich"):
        f = WongZakai(make("general", kind), 0.0, 1.0).sample(states(), seed=0)
        recording, counted[kind] = record_and_count(f, T, states(), f.parameters())
        assert recording.out.requires_grad
    assert counted["ito"] is not None and counted["stratonovich"] is not None
    assert counted["ito"] > 1.5 * counted["stratonovich"] > 0
