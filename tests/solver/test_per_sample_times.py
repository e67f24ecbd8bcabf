"""Times of each sample's own, t of shape (B, K): one solve that equals a loop over the samples, and its gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import problems
import quadjoint as qj

DTYPE = torch.float64
NAN = float("nan")
GRADIENTS = ["direct", "discrete", "gq", "adjoint", "seminorm"]
ROWS = torch.tensor(
    [
        [0.0, 0.3, 0.9, 1.6],
        [0.5, 0.6, 0.7, 0.8],
        [1.0, 1.4, NAN, NAN],
        [2.0, 1.1, 0.4, NAN],  # backwards in time
    ],
    dtype=DTYPE,
)
KEPT = ~torch.isnan(ROWS)


class Growth(nn.Module):
    """dy/dt = r cos(w t) y for every sample, at its own time."""

    def __init__(self) -> None:
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.9, -0.4], dtype=DTYPE))
        self.w = nn.Parameter(torch.tensor(2.0, dtype=DTYPE))
        self.y0 = torch.tensor([[1.0, 0.5], [-0.3, 2.0], [0.7, 0.7], [1.5, -1.0]], dtype=DTYPE)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        assert y.ndim == 2 and t.shape in ((), (len(y), 1))  # always the batch, never a sample alone
        return self.r * torch.cos(self.w * t) * y

    def exact(self, y0: Tensor, t: Tensor) -> Tensor:
        """States of shape (K, B, 2); padding repeats the last state."""
        last = KEPT.sum(1, keepdim=True) - 1
        t = torch.where(KEPT, t, t.gather(1, last))
        phase = (torch.sin(self.w * t) - torch.sin(self.w * t[:, :1])) / self.w
        return torch.exp(self.r * phase.T[..., None]) * y0


class Pair(Growth):
    """Two such systems as a tuple with shapes (B, 2) and (B, 1, 2), the second twice as fast."""

    def __init__(self) -> None:
        super().__init__()
        self.y0 = (self.y0, 0.5 * self.y0[:, None])

    def forward(self, t: Tensor, y: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        rate = self.r * torch.cos(self.w * t.reshape(-1, 1))
        return rate * y[0], 2 * rate[:, None] * y[1]

    def exact(self, y0: tuple[Tensor, ...], t: Tensor) -> tuple[Tensor, ...]:
        growth = super().exact(torch.ones_like(y0[0]), t)
        return growth * y0[0], growth[:, :, None] ** 2 * y0[1]


def observed(ys: problems.State) -> problems.State:
    """The observations that are no padding."""
    kept = tuple(part[KEPT.T] for part in problems.parts(ys))
    return kept if isinstance(ys, tuple) else kept[0]


def gradients(f: nn.Module, solve: Any) -> list[Tensor]:
    return problems.gradients(f, lambda y0, t: observed(solve(y0, t)), ROWS)


METHODS: dict[str, dict[str, Any]] = {
    "dopri5": {},
    "tsit5": {},
    "dopri8": {},
    "bosh3": {},
    "rk4": {"step_size": 0.01},
    "midpoint": {"step_size": 0.002},
}


@pytest.mark.parametrize("problem", [Growth, Pair])
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("method", METHODS)
def test_states_are_those_of_every_sample_alone(method: str, gradient: str, problem: type[nn.Module]) -> None:
    f = problem()
    with torch.no_grad():
        ys = qj.odeint(f, f.y0, ROWS, method=method, options=METHODS[method], rtol=1e-8, atol=1e-8, gradient=gradient)
        exact = f.exact(f.y0, ROWS)
    assert [part.shape for part in problems.parts(ys)] == [part.shape for part in problems.parts(exact)]
    assert problems.error(ys, exact) < (3e-5 if method == "midpoint" else 2e-6)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_equal_to_a_loop_over_samples(gradient: str) -> None:
    f = Growth()

    def loop(y0: Tensor, t: Tensor) -> Tensor:
        rows = []
        for b, kept in enumerate(KEPT.sum(1).tolist()):
            ys = qj.odeint(f, y0[b : b + 1], t[b, :kept], rtol=1e-9, atol=1e-9, gradient="direct")[:, 0]
            rows.append(torch.cat([ys, ys[-1:].expand(t.shape[1] - kept, -1)]))
        return torch.stack(rows, dim=1)

    def together(y0: Tensor, t: Tensor) -> Tensor:
        return qj.odeint(f, y0, t, rtol=1e-9, atol=1e-9, gradient=gradient)

    assert problems.error(together(f.y0, ROWS), loop(f.y0, ROWS)) < 1e-7
    assert problems.agree(gradients(f, together), gradients(f, loop), 1e-5)


@pytest.mark.parametrize("problem", [Growth, Pair])
@pytest.mark.parametrize("gradient", [*GRADIENTS, "auto"])
def test_gradients_in_state_times_and_parameters(gradient: str, problem: type[nn.Module]) -> None:
    f = problem()

    def solve(y0: problems.State, t: Tensor) -> problems.State:
        return qj.odeint(f, y0, t, rtol=1e-9, atol=1e-9, gradient=gradient)

    found, exact = gradients(f, solve), gradients(f, f.exact)
    in_times = found[len(problems.parts(f.y0))]
    assert torch.equal(in_times[~KEPT], torch.zeros_like(in_times[~KEPT]))
    assert problems.agree(found, exact, 1e-5)


@pytest.mark.parametrize("mode", ["joint", "stacked"])
def test_modes_of_the_discrete_adjoint(mode: str) -> None:
    f = Growth()

    def solve(y0: Tensor, t: Tensor) -> Tensor:
        return qj.odeint(f, y0, t, rtol=1e-9, atol=1e-9, gradient=qj.DiscreteAdjoint(mode=mode))

    assert problems.agree(gradients(f, solve), gradients(f, f.exact), 1e-5)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_equal_rows_are_shared_times(gradient: str) -> None:
    f = Growth()
    t = torch.tensor([0.1, 0.8, 1.3], dtype=DTYPE)
    shared = qj.odeint(f, f.y0, t, rtol=1e-9, atol=1e-9, gradient=gradient)
    own = qj.odeint(f, f.y0, t.expand(4, 3), rtol=1e-9, atol=1e-9, gradient=gradient)
    assert problems.error(shared, own) < 1e-7


def test_a_row_with_a_single_time_stays_where_it_is() -> None:
    f = Growth()
    t = torch.tensor([[0.1, 0.8], [0.4, NAN], [0.2, 0.5], [0.3, 0.1]], dtype=DTYPE)
    ys = qj.odeint(f, f.y0, t, gradient="direct")
    assert torch.equal(ys[1, 1], f.y0[1])


def test_one_solve_for_all_samples() -> None:
    """Samples on one interval cost what one of them costs, not their number times as much."""
    f = Growth()
    torch.manual_seed(0)
    t = torch.cat([torch.zeros(50, 1), torch.rand(50, 8).sort(1).values, torch.ones(50, 1)], dim=1).to(DTYPE)
    y0 = torch.ones(50, 2, dtype=DTYPE)
    alone = qj.solve(f, y0[:1], t[0], gradient="direct").stats.forward_evaluations
    together = qj.solve(f, y0, t, gradient="direct").stats.forward_evaluations
    assert together <= 1.2 * alone
