"""How often the host waits for numbers in backward passes, and on which problems it is counted."""

from __future__ import annotations

import pytest
import torch
from benchmarks.counting import counting
from torch import Tensor

import quadjoint as qj


def backward_reads(gradient: qj.Gradient, end: float) -> tuple[int, qj.Solution]:
    torch.manual_seed(0)
    f, y0 = qj.nn.TimeMLP(3, width=16), torch.randn(5, 3)
    sol = qj.solve(f, y0, torch.linspace(0, end, 9, dtype=torch.float64), gradient=gradient, rtol=1e-4, atol=1e-4)
    assert isinstance(sol.ys, Tensor)
    loss = sol.ys.square().sum()
    with counting() as counts:
        loss.backward()
    return counts.totals()["reads"], sol


def test_small_systems_are_judged_once() -> None:
    """However many steps there are: the gradient of the loss, the function, the solution of all systems, its error."""
    found = [backward_reads(qj.GaussLegendre(solve="dense"), end) for end in (1.0, 20.0)]
    assert [reads for reads, _ in found] == [4, 4]
    assert found[0][1].stats.accepted_steps < found[1][1].stats.accepted_steps


def test_iterations_have_one_stopping_test_each() -> None:
    """A product with all nodes of a step comes before every test; three reads are for the whole pass."""
    reads, sol = backward_reads(qj.GaussLegendre(solve="iterate"), 4.0)
    stats = sol.stats
    products = stats.vjp_state // (stats.quadrature_nodes // stats.accepted_steps)
    assert reads == 3 + products


@pytest.mark.parametrize("gradient", ["direct", "discrete"])
@pytest.mark.parametrize("independent", [False, True])
def test_exact_transposes_read_nothing(gradient: str, independent: bool) -> None:
    """But for which samples were observed and where, if each has steps of its own: two reads, however many they are."""
    for end in (1.0, 20.0):
        torch.manual_seed(0)
        f, y0 = qj.nn.TimeMLP(3, width=16), torch.randn(5, 3)
        t = torch.linspace(0, end, 9, dtype=torch.float64)
        ys = qj.odeint(f, y0, t, gradient=gradient, rtol=1e-4, atol=1e-4, independent=independent)
        assert isinstance(ys, Tensor)
        loss = ys.square().sum()
        with counting() as counts:
            loss.backward()
        assert counts.totals()["reads"] == (2 if independent and gradient == "discrete" else 0)


def test_reads_inside_of_a_backward_pass_are_counted() -> None:
    class Reader(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *grads: Tensor) -> Tensor:
            return grads[0] * sum(grads[0].tolist())

    loss = Reader.apply(torch.ones(3, requires_grad=True)).sum()
    with counting() as counts:
        loss.backward()
    assert counts.reads == {"tolist": 1}
    assert "tolist" not in vars(Tensor)
