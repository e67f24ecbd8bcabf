"""What the tests of trust share: the gradients and small networks. A test here states what a user may rely on."""

from __future__ import annotations

import itertools
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj

CHECKPOINTS = qj.DiscreteAdjoint(max_states=2)
LEAN = qj.Auto(memory_limit=1)  # auto where nothing may be recorded
EXACT: tuple[Any, ...] = ("auto", LEAN, "direct", "discrete", CHECKPOINTS)
REPLAYED: tuple[Any, ...] = (*EXACT, "gq")  # can compare what f gives again with what it gave
BACKSOLVED: tuple[Any, ...] = ("gq-paper", "adjoint", "seminorm")  # have only the states at the observations
GRADIENTS: tuple[Any, ...] = (*REPLAYED, *BACKSOLVED)
TIGHT: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8}
DTYPE = torch.float64


def name_of(x: Any) -> str:
    """A short name of a parameter of a test."""
    names = {CHECKPOINTS: "checkpoints", LEAN: "lean auto"}
    if isinstance(x, qj.Gradient) and x in names:
        return names[x]
    if isinstance(x, qj.DiscreteAdjoint):
        return x.mode if x.max_states is None else f"{x.mode} checkpoints"
    return x if isinstance(x, str) else getattr(x, "__name__", str(x))


def cases(*values: Iterable[Any]) -> list[Any]:
    """All combinations, for ``parametrize``, with short names."""
    return [pytest.param(*parts, id="-".join(map(name_of, parts))) for parts in itertools.product(*values)]


class Field(nn.Module):
    """dy/dt = V tanh(U y + b) - y / 2 on the last dimension; the weights are drawn from ``seed``."""

    def __init__(self, dim: int = 3, width: int = 12, *, seed: int = 0, dtype: torch.dtype = DTYPE) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.inner = nn.Linear(dim, width, dtype=dtype)
        self.outer = nn.Linear(width, dim, dtype=dtype)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=draw, dtype=DTYPE) / p.shape[-1] ** 0.5)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(y))) - 0.5 * y


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = DTYPE) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DTYPE).to(dtype)


def times(*values: float) -> Tensor:
    return torch.tensor(values, dtype=DTYPE)


def weigh(ys: Tensor) -> Tensor:
    """A smooth real function of all observations in which every entry counts differently."""
    real = torch.view_as_real(ys) if ys.is_complex() else ys
    weights = torch.cos(torch.arange(real.numel(), dtype=DTYPE) + 0.5).reshape(real.shape).to(real)
    return (weights * real).sum() + 0.3 * real.square().sum()


def relative(found: Sequence[Tensor | None], wanted: Sequence[Tensor]) -> float:
    """Relative error of several gradients taken together, in the Euclidean norm; a missing one counts as zero."""
    pairs = list(zip(found, wanted, strict=True))
    gap = sum(float((b if a is None else a - b).abs().square().sum()) for a, b in pairs)
    size = sum(float(b.abs().square().sum()) for b in wanted)
    return (gap / size) ** 0.5 if size else gap**0.5


def assert_close(found: Sequence[Tensor | None], wanted: Sequence[Tensor], *, within: float) -> None:
    """The relative error of the gradients together is less than ``within``."""
    error = relative(found, wanted)
    assert error < within, f"relative error {error:.3g}, more than {within:.0e}"


def tolerance(gradient: Any) -> float:
    """What the relative error of a gradient may be at the tolerances of ``TIGHT``."""
    return 1e-6 if gradient in EXACT else 1e-3


REFUSAL = r"forward pass|in-?place"  # "f gives other values than in the forward pass", or autograd's own words


def right_or_refused(
    compute: Callable[[], Sequence[Tensor | None]], wanted: Sequence[Tensor], *, within: float, words: str = REFUSAL
) -> None:
    """The gradients are right, or an error says why they cannot be had; a wrong number is neither."""
    try:
        found = compute()
    except (ValueError, RuntimeError) as error:
        assert re.search(words, str(error)), f"the error does not name the cause ({words}): {error}"
        return
    assert_close(found, wanted, within=within)


def environment() -> dict[str, str]:
    """The environment for a process of its own that imports what this one imports."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


@contextmanager
def quiet() -> Iterator[None]:
    """Without the library's remarks on speed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", qj.QuadjointWarning)
        yield
