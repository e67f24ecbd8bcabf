"""What the tests of the gradient methods share: small networks, relative errors, and a count of live tensor memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import quadjoint as qj

EXACT = ("direct", "discrete")
CONTINUOUS = ("gq", "gq-paper", "adjoint", "seminorm")
ALL = (*EXACT, *CONTINUOUS)
TIGHT = {"rtol": 1e-8, "atol": 1e-8}


class Network(nn.Module):
    """Two layers with softplus in between; ``scale`` multiplies the weights that PyTorch's initialisation gives."""

    def __init__(self, dim: int = 3, width: int = 8, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.net = nn.Sequential(nn.Linear(dim, width), nn.Softplus(), nn.Linear(width, dim)).double()
        with torch.no_grad():
            for p in self.parameters():
                p.mul_(scale)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.net(y)


class Driven(Network):
    """A network whose speed depends on time."""

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.net(y) * (1.0 + 0.5 * torch.sin(3.0 * t))


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def times(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def relative(found: Sequence[Tensor | None], reference: Sequence[Tensor | None]) -> float:
    """Largest relative error of several gradients in the Euclidean norm; a missing one must be missing in both."""
    worst = 0.0
    for a, b in zip(found, reference, strict=True):
        if b is None or a is None:
            assert a is b, "a gradient is missing"
        elif float(b.norm()) == 0.0:
            worst = max(worst, float(a.norm()))
        else:
            worst = max(worst, float((a - b).norm() / b.norm()))
    return worst


def flat(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([g.reshape(-1) for g in gradients])


def loss(ys: Tensor) -> Tensor:
    """A smooth function of all observations in which every entry counts differently."""
    weights = torch.cos(torch.arange(ys.numel(), dtype=torch.float64)).reshape(ys.shape).to(ys)
    return (weights * ys).sum() + 0.3 * ys.square().sum()


def gradients(
    f: Callable[..., Any],
    y0: Tensor,
    t: Tensor,
    how: str | qj.Gradient,
    wrt: Sequence[Tensor] | None = None,
    loss: Callable[..., Tensor] = loss,
    **options: Any,
) -> list[Tensor]:
    """Gradients in y0, t and the parameters (of the module f, or those given)."""
    y0, t = y0.clone().requires_grad_(), t.clone().requires_grad_()
    ys = qj.odeint(f, y0, t, gradient=how, **options)
    inputs = (y0, t, *(f.parameters() if isinstance(f, nn.Module) and wrt is None else wrt or ()))
    return list(torch.autograd.grad(loss(ys), inputs))


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of all storages that operations under it create, while they live; the count is deterministic."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                if storage._cdata not in inputs and storage._cdata not in self._alive:
                    self._add(storage)
        return out

    def _add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._alive.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size
