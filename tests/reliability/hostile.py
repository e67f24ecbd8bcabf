"""Dynamics that misbehave. Disarmed, each is the benign dy/dt = tanh(W y) - y / 2 again."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import quadjoint as qj

TIMES = torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64)


class Benign(nn.Module):
    """The dynamics that all faults are made from; ``armed`` switches the fault on."""

    def __init__(self) -> None:
        super().__init__()
        weights = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        self.W = nn.Parameter(weights)
        self.armed = True

    def benign(self, y: Tensor) -> Tensor:
        return torch.tanh(y @ self.W.T) - 0.5 * y

    def fault(self, t: Tensor, y: Tensor) -> Any:
        return self.benign(y)

    def forward(self, t: Tensor, y: Tensor) -> Any:
        return self.fault(t, y) if self.armed else self.benign(y)


class Nan(Benign):
    """Not finite after t = 1/2: everywhere, or for one sample."""

    def __init__(self, value: float = float("nan"), samples: slice = slice(None)) -> None:
        super().__init__()
        self.value, self.samples = value, samples

    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        bad = torch.zeros_like(y)
        bad[..., self.samples, :] = self.value
        return torch.where(t > 0.5, bad, self.benign(y))


class BlowUp(Benign):
    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        return 10 * y * y


class RaisesForward(Benign):
    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        if t > 0.5:
            raise LookupError("the sensor fell off at t > 0.5")
        return self.benign(y)


class _BadBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        raise LookupError("this operation cannot be transposed")


class RaisesBackward(Benign):
    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        return _BadBackward.apply(self.benign(y))


class Interrupted(Benign):
    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        if t > 0.5:
            raise KeyboardInterrupt
        return self.benign(y)


class Returns(Benign):
    """Returns something else than a derivative, from the start or only after t = 1/2."""

    def __init__(self, change: Callable[[Tensor], Any], after: float = -1.0) -> None:
        super().__init__()
        self.change, self.after = change, after

    def fault(self, t: Tensor, y: Tensor) -> Any:
        return self.change(self.benign(y)) if t > self.after else self.benign(y)


class ReturnsInput(Benign):
    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        return y

    def benign(self, y: Tensor) -> Tensor:
        return y + 0 * (y @ self.W.T)


class InPlace(Benign):
    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        out = self.benign(y)
        with torch.no_grad():
            y.mul_(1.5)
        return out


class OwnBuffer(Benign):
    """Writes every result into one buffer and returns that."""

    buffer: Tensor | None = None

    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        out = self.benign(y)
        if self.buffer is None or self.buffer.shape != out.shape:
            self.buffer = torch.empty_like(out)
        with torch.no_grad():
            self.buffer.copy_(out)
        return self.buffer


class Hoards(Benign):
    """Keeps every tensor that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        out = self.benign(y)
        self.seen += [t, y, out]
        return out


class Dropout(Benign):
    """Other numbers in every evaluation."""

    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        return nn.functional.dropout(self.benign(y), 0.3, training=True)


class Normalised(Benign):
    """BatchNorm in train mode: samples influence each other, and every evaluation moves the running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, dtype=torch.float64)

    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        return 0.5 * torch.tanh(self.norm(y) @ self.W.T)


class Layered(Benign):
    """A linear layer that has been changed by one of torch's tools: weight norm, spectral norm, hooks."""

    def __init__(self, change: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        layer = nn.Linear(3, 3, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(self.W)
            layer.bias.zero_()
        changed = change(layer)
        self.layer = changed if isinstance(changed, nn.Module) else layer

    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(self.layer(y)) - 0.5 * y + 0 * self.benign(y)


class Checkpointed(Benign):
    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant

    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        return checkpoint(self.benign, y, use_reentrant=self.reentrant)


class Nested(Benign):
    """Solves an ODE inside the ODE."""

    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        inner = qj.odeint(lambda s, x: -x, y, TIMES[:2], method="rk4", gradient="direct")
        return self.benign(inner[-1])


class Awkward(Benign):
    """Not contiguous, and a view of something larger."""

    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        out = self.benign(y)
        return torch.stack([out, out], dim=-1).transpose(0, 1)[..., 0].transpose(0, 1)


class GradOff(Benign):
    """Leaves the grad mode as it should not."""

    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        out = self.benign(y)
        torch.set_grad_enabled(False)
        return out


class VanDerPol(Benign):
    """Stiff: y0'' = mu (1 - y0^2) y0' - y0 with mu = 1000."""

    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        x, v, w = y.unbind(-1)
        return torch.stack([v, 1000.0 * (1 - x * x) * v - x, 0 * w], dim=-1)


class Robertson(Benign):
    """Stiff chemical kinetics: rates 0.04, 1e4 and 3e7."""

    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        a, b, c = y.unbind(-1)
        slow, fast = 0.04 * a - 1e4 * b * c, 3e7 * b * b
        return torch.stack([-slow, slow - fast, fast], dim=-1)


def weight_norm(layer: nn.Module) -> nn.Module:
    return nn.utils.parametrizations.weight_norm(layer)


def spectral_norm(layer: nn.Module) -> nn.Module:
    """In train mode, where each evaluation moves the estimate of the norm."""
    return nn.utils.parametrizations.spectral_norm(layer).train()


def hooks(layer: nn.Module) -> None:
    """Hooks that leave the numbers as they are, in the forward and in the backward pass."""
    layer.register_forward_pre_hook(lambda module, args: None)
    layer.register_forward_hook(lambda module, args, out: out * 1.0)
    layer.register_full_backward_hook(lambda module, grad_in, grad_out: None)


def pickled(f: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(f))


def saved(f: nn.Module) -> nn.Module:
    """Weights written by torch.save and read with weights_only into a fresh module."""
    file = io.BytesIO()
    torch.save(f.state_dict(), file)
    file.seek(0)
    fresh = Benign()
    nn.init.zeros_(fresh.W)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh
