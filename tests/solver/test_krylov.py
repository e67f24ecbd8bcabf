"""Linear equations solved by products alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quadjoint.solver.krylov import gmres


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.complex128)


@pytest.mark.parametrize("preconditioned", [False, True])
def test_maps_that_are_linear_in_real_numbers_alone_are_inverted(preconditioned: bool) -> None:
    """x + A x + B conj(x), as derivatives of f(z, conj z) are."""
    a, b, x = 0.5 * normal(6, 6), 0.5 * normal(6, 6, seed=1), normal(6, seed=2)

    def apply(x: Tensor) -> Tensor:
        return x + a @ x + b @ x.conj()

    precondition = (lambda x: torch.linalg.solve(torch.eye(6) + a, x)) if preconditioned else None
    found = gmres(apply, apply(x), target=1e-10, precondition=precondition)
    assert found.residual <= 1e-10
    torch.testing.assert_close(found.x, x, rtol=0.0, atol=1e-8)


def test_a_start_is_improved() -> None:
    a, x = 0.5 * normal(4, 4), normal(4, seed=2)
    found = gmres(lambda x: x + a @ x, x + a @ x, x + 1e-3, target=1e-12)
    torch.testing.assert_close(found.x, x, rtol=0.0, atol=1e-10)
