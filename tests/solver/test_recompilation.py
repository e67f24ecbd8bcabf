"""compile=True without surprises: how often torch compiles, and what is said if it gives up."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from quadjoint.errors import forget_warnings
from quadjoint.solver.methods import compiled

# torch's tracer looks at .grad of intermediate tensors and calls deprecated parts of itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]
DTYPE = torch.float64


@pytest.fixture(autouse=True)
def quick_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace as in earnest, without generating machine code."""
    monkeypatch.setattr(compiled, "COMPILE", {"backend": "eager"})


class Counter(nn.Module):
    """Counts its evaluations, as the dynamics of torchdiffeq's examples do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).to(DTYPE)
        self.nfe = 0

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        self.nfe += 1
        return self.layers(y) * torch.cos(t)


class Named(Counter):
    """Depends on a word that is another one in every solve."""

    word = "zero"

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return super().forward(t, y) * (1.0 + len(self.word))


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def solve(f: nn.Module, rows: int, *, gradient: str = "direct", compile: bool = True) -> tuple[Tensor, list[Tensor]]:
    y0, t = torch.linspace(-1, 1, 2 * rows, dtype=DTYPE).reshape(rows, 2), torch.linspace(0, 2, 4, dtype=DTYPE)
    ys = qj.odeint(f, y0, t, method="bosh3", gradient=gradient, rtol=1e-6, atol=1e-6, compile=compile)
    assert isinstance(ys, Tensor)
    return ys.detach(), list(torch.autograd.grad(ys.square().sum(), list(f.parameters())))


def assert_same(ours: tuple[Tensor, list[Tensor]], eager: tuple[Tensor, list[Tensor]]) -> None:
    for a, b in zip([ours[0], *ours[1]], [eager[0], *eager[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("gradient", ["direct", "discrete"])
def test_a_counter_of_evaluations_is_compiled_twice(gradient: str) -> None:
    """Once with the number that it holds, and once, when that has changed, with any number."""
    f, before = Counter(), graphs()
    ours = solve(f, 4, gradient=gradient)
    assert 1 <= graphs() - before <= 3
    counted, first = f.nfe, graphs()
    for _ in range(9):  # torch compiles a function eight times
        f.nfe = 0
        solve(f, 4, gradient=gradient)
        assert f.nfe == counted
    assert graphs() == first
    assert_same(ours, solve(f, 4, gradient=gradient, compile=False))


def test_batch_sizes_are_compiled_once_and_once_for_all() -> None:
    f, found = Counter(), []
    for rows in (8, 5, 3, 7, 6):
        assert_same(solve(f, rows), solve(f, rows, compile=False))
        found.append(graphs())
    assert found[1] > found[0], "sizes are constants of the first graph"
    assert found[1] == found[2] == found[3] == found[4]


def test_torch_gives_up_with_one_warning() -> None:
    forget_warnings()
    f = Named()
    with (
        torch._dynamo.config.patch(recompile_limit=3),
        pytest.warns(qj.QuadjointWarning, match=r"Named .* torch gives up.* as fast as with compile=False") as said,
    ):
        for i in range(5):
            f.word = "x" * i
            assert_same(solve(f, 4), solve(f, 4, compile=False))
    assert len(said) == 1
    before = graphs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f.word = "another"
        solve(f, 4)
    assert graphs() == before
