"""Initial value problems with closed-form solutions.

Each problem is a module with its parameters, so that it can be handed to any solver. ``exact`` is written in torch:
differentiating it gives the exact gradients in the initial state, the times and the parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

State = Tensor | tuple[Tensor, ...]


class Growth(nn.Module):
    """dy/dt = r cos(w t) y, hence y = y0 exp(r (sin(w t) - sin(w t0)) / w); linear, depends on time, any shape."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.r = nn.Parameter(torch.tensor(0.9, dtype=dtype.to_real()))
        self.w = nn.Parameter(torch.tensor(2.0, dtype=dtype.to_real()))
        self.y0: Tensor = torch.tensor([1.0, -0.5, 2.0], dtype=dtype)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.r * torch.cos(self.w * t) * y

    def exact(self, y0: Tensor, t: Tensor) -> Tensor:
        phase = (torch.sin(self.w * t) - torch.sin(self.w * t[0])) / self.w
        return torch.exp(self.r * phase).reshape(-1, *(1,) * y0.ndim) * y0


class Logistic(nn.Module):
    """dy/dt = r y (1 - y / m), hence y = m / (1 + (m / y0 - 1) exp(-r (t - t0))); nonlinear, any shape."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.r = nn.Parameter(torch.tensor(1.3, dtype=dtype.to_real()))
        self.m = nn.Parameter(torch.tensor(2.0, dtype=dtype.to_real()))
        self.y0: Tensor = torch.tensor([[0.3, 1.1], [1.6, 0.7]], dtype=dtype)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.r * y * (1 - y / self.m)

    def exact(self, y0: Tensor, t: Tensor) -> Tensor:
        decay = torch.exp(-self.r * (t - t[0])).reshape(-1, *(1,) * y0.ndim)
        return self.m / (1 + (self.m / y0 - 1) * decay)


class Linear(nn.Module):
    """dy/dt = y A^T, hence y = y0 exp((t - t0) A)^T; components are coupled, samples (rows) are not."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[-0.3, 1.1], [-0.9, 0.1]], dtype=dtype))
        self.y0: Tensor = torch.tensor([[1.0, 0.4], [-0.7, 0.2], [0.1, 1.5]], dtype=dtype)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return y @ self.a.T

    def exact(self, y0: Tensor, t: Tensor) -> Tensor:
        flow = torch.linalg.matrix_exp((t - t[0]).reshape(-1, 1, 1) * self.a)
        return y0 @ flow.transpose(1, 2)


class Spiral(nn.Module):
    """dy/dt = (-a + i w) y for complex y with real parameters, hence y = y0 exp((-a + i w) (t - t0))."""

    def __init__(self, dtype: torch.dtype = torch.complex128) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(0.2, dtype=dtype.to_real()))
        self.w = nn.Parameter(torch.tensor(1.7, dtype=dtype.to_real()))
        self.y0: Tensor = torch.tensor([1.0 + 0.5j, -0.3j], dtype=dtype)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.complex(-self.a, self.w) * y

    def exact(self, y0: Tensor, t: Tensor) -> Tensor:
        return torch.exp(torch.complex(-self.a, self.w) * (t - t[0])).reshape(-1, *(1,) * y0.ndim) * y0


class Oscillator(nn.Module):
    """x' = v, v' = -w^2 x as a tuple state (x, v) of two shapes; x has solutions of frequency w."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(1.4, dtype=dtype.to_real()))
        self.y0: tuple[Tensor, ...] = (
            torch.tensor([1.0, -0.2], dtype=dtype),
            torch.tensor([[0.3], [0.8]], dtype=dtype),
        )

    def forward(self, t: Tensor, y: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, v = y
        return v[:, 0], -(self.w**2) * x[:, None]

    def exact(self, y0: tuple[Tensor, ...], t: Tensor) -> tuple[Tensor, ...]:
        x0, v0 = y0[0], y0[1][:, 0]
        angle = (self.w * (t - t[0])).reshape(-1, 1)
        x = x0 * torch.cos(angle) + v0 / self.w * torch.sin(angle)
        v = v0 * torch.cos(angle) - x0 * self.w * torch.sin(angle)
        return x, v[..., None]


REAL: dict[str, Callable[..., nn.Module]] = {
    "growth": Growth,
    "logistic": Logistic,
    "linear": Linear,
}
PROBLEMS: dict[str, Callable[..., nn.Module]] = {**REAL, "spiral": Spiral, "oscillator": Oscillator}


def parts(state: State) -> tuple[Tensor, ...]:
    """The tensors of a state."""
    return (state,) if isinstance(state, Tensor) else state


def error(state: State, reference: State) -> float:
    """Largest difference of two states in any entry."""
    pairs = zip(parts(state), parts(reference), strict=True)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)


def loss(ys: State) -> Tensor:
    """A smooth real function of all observations in which every entry counts differently."""
    total = torch.zeros((), dtype=torch.float64)
    for part in parts(ys):
        real = torch.view_as_real(part) if part.is_complex() else part
        weights = torch.cos(torch.arange(real.numel(), dtype=real.dtype).reshape(real.shape) + 0.5)
        total = total + (weights * real).sum() + 0.3 * (real**2).sum()
    return total


def gradients(problem: nn.Module, solve: Callable[..., State], times: Tensor) -> list[Tensor]:
    """Gradients of ``loss`` in the tensors of the initial state, the times and the parameters.

    ``solve(y0, t)`` returns the observations; ``problem.exact`` may be it.
    """
    y0 = tuple(part.clone().requires_grad_() for part in parts(problem.y0))
    t = times.clone().requires_grad_()
    ys = solve(y0 if isinstance(problem.y0, tuple) else y0[0], t)
    return list(torch.autograd.grad(loss(ys), (*y0, t, *problem.parameters())))


def agree(found: list[Tensor], reference: list[Tensor], rtol: float) -> bool:
    """Whether every gradient has a relative error below ``rtol`` in the Euclidean norm."""
    return all(float((a - b).norm()) <= rtol * float(b.norm()) for a, b in zip(found, reference, strict=True))
