"""Adaptive steps of an SDE: which methods take them, with which noise, and what is said about the others."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from quadjoint.errors import forget_warnings
from quadjoint.sde import NeuralSDE, sdeint

DTYPE = torch.float64
T = torch.tensor([0.0, 0.25, 1.0], dtype=DTYPE)
LOOSE: dict[str, Any] = {"dt": 0.25, "seed": 0, "adaptive": True, "rtol": 0.1, "atol": 0.1}
START = torch.ones(2, 1, dtype=DTYPE)
SHAPES: dict[str, tuple[int, ...]] = {"diagonal": (), "scalar": (1,), "general": (2,), "additive": (2,)}


def noisy(noise_type: str) -> NeuralSDE:
    """Noise of size 1/2 in every entry, in proportion to the state unless it is additive."""

    def diffusion(t: Tensor, y: Tensor) -> Tensor:
        g = 0.5 * (torch.ones_like(y) if noise_type == "additive" else y)
        return g.reshape(*g.shape, *(1 for _ in SHAPES[noise_type])).expand(*g.shape, *SHAPES[noise_type])

    return NeuralSDE(lambda t, y: -y, diffusion, noise_type)  # type: ignore[arg-type]


@pytest.mark.parametrize("noise_type", ["diagonal", "scalar"])
def test_what_is_recommended_instead_of_euler_is_accepted(noise_type: str) -> None:
    with pytest.raises(ValueError, match="do not converge") as refused:
        sdeint(noisy(noise_type), START, T, method="euler", **LOOSE)
    words = re.findall(r"'(\w+)'", str(refused.value))
    assert words[0] == "euler" and len(words) == 3 and f"for {noise_type} noise" in str(refused.value)
    for method in words[1:]:
        assert sdeint(noisy(noise_type), START, T, method=method, **LOOSE).isfinite().all()


def test_with_general_noise_fixed_steps_are_recommended_instead_of_euler() -> None:
    with pytest.raises(ValueError, match="for general noise take fixed steps, adaptive=False"):
        sdeint(noisy("general"), START, T, method="euler", **LOOSE)
    fixed = {**LOOSE, "adaptive": False}
    assert sdeint(noisy("general"), START, T, method="euler", **fixed).isfinite().all()


def test_adaptive_steps_of_euler_with_additive_noise() -> None:
    assert sdeint(noisy("additive"), START, T, method="euler", **LOOSE).isfinite().all()


@pytest.mark.parametrize("method", ["reversible_heun", "heun", "midpoint", "euler_heun", "log_ode"])
def test_the_doubt_about_adaptive_steps_with_general_noise_is_mentioned_once(method: str) -> None:
    forget_warnings()
    with pytest.warns(qj.QuadjointWarning, match=r"may then converge to another process.*adaptive=False.*noise_type"):
        sdeint(noisy("general"), START, T, method=method, **LOOSE)
    sdeint(noisy("general"), START, T, method=method, **LOOSE)  # a second warning would be an error here


def test_so_is_that_with_diagonal_noise_whose_entries_may_depend_on_each_other() -> None:
    forget_warnings()
    start = torch.ones(2, 2, dtype=DTYPE)
    with pytest.warns(qj.QuadjointWarning, match="elementwise=True"):
        sdeint(noisy("diagonal"), start, T, method="heun", **LOOSE)
    promised = NeuralSDE(lambda t, y: -y, lambda t, y: 0.5 * y, elementwise=True)
    forget_warnings()
    sdeint(promised, start, T, method="heun", **LOOSE)  # no warning, which would be an error
