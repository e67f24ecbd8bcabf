"""Dynamics that misbehave, and what must come of them: the right result, or an error in words.

Each ``Fault`` makes a function that can be disarmed, after which it is the benign dynamics dy/dt = tanh(W y) - y / 2
again. The tests and the table in ``docs/reliability.md`` run the same list.
"""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import quadjoint as qj
from quadjoint.errors import NonFiniteStateError

GRADIENTS = ("direct", "discrete", "gq", "gq-paper", "adjoint", "seminorm", "reversible", "auto")
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
    def fault(self, t: Tensor, y: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.benign, y, use_reentrant=False)


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
    """In eval mode, as each evaluation in train mode moves the estimate of the norm."""
    return nn.utils.parametrizations.spectral_norm(layer).eval()


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


@dataclass(frozen=True)
class Fault:
    """A misbehaviour, and what is expected of every gradient method.

    Args:
        name: what is wrong, in words.
        make: makes the function.
        error, pattern: the exception and its words; none where the result must be right.
        around: a context in which the solve runs.
        poison: put a NaN into the gradient of the loss.
        special: gradient methods for which another exception (or None: a right result) is expected.
        tolerance: of the comparison with direct backpropagation.
        settings: of the solve.
        y0: the initial state; one that suits the benign dynamics unless given.
    """

    name: str
    make: Callable[[], Benign]
    error: type[BaseException] | None = None
    pattern: str = ""
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    poison: bool = False
    special: dict[str, tuple[type[BaseException] | None, str]] = field(default_factory=dict)
    tolerance: float = 1e-4
    settings: dict[str, Any] = field(default_factory=dict)
    y0: Callable[[], Tensor] | None = None

    def expected(self, gradient: str) -> tuple[type[BaseException] | None, str]:
        return self.special.get(gradient, (self.error, self.pattern))


def initial() -> Tensor:
    return torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(4, 3)


Attempt = tuple[Tensor, dict[str, Tensor]]


def attempt(fault: Fault, f: nn.Module, gradient: str, method: str | None = None) -> Attempt:
    """Solve and differentiate once: states and gradients."""
    y0 = (fault.y0 or initial)().requires_grad_()
    method = method or method_of(gradient)
    tight = {"rtol": 1e-3, "atol": 1e-4} if method == "alf" else {"rtol": 1e-7, "atol": 1e-8}
    f.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", qj.QuadjointWarning)
        with fault.around():
            ys = qj.odeint(f, y0, TIMES, **{"method": method, **tight, "gradient": gradient, **fault.settings})
        loss = (ys[1:] ** 2).sum()
        if fault.poison:
            loss = loss * float("nan")
        loss.backward()
    return ys.detach(), {n: g.grad.clone() for n, g in [("y0", y0), *f.named_parameters()] if g.grad is not None}


def method_of(gradient: str) -> str:
    return "alf" if gradient == "reversible" else "dopri5"


def difference(found: Attempt, reference: Attempt) -> float:
    """Largest relative difference of states and gradients."""
    (ys, gradients), (right, expected) = found, reference
    pairs = [(ys, right)]
    for name in {*gradients, *expected}:
        zeros = torch.zeros_like(gradients.get(name, expected.get(name)))
        pairs.append((gradients.get(name, zeros), expected.get(name, zeros)))
    return max(float((a - b).norm() / b.norm().clamp(min=1e-3)) for a, b in pairs)


def sick(samples: slice = slice(None), value: float = float("nan")) -> Callable[[], Benign]:
    return lambda: Nan(value, samples)


def bfloat16() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def stiff_start() -> Tensor:
    return torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64)


NOT_FINITE = (NonFiniteStateError, "not finite")
SHORT = {"options": {"max_num_steps": 300}}
# The recorded and transposed solves are as transparent to NaN as any other operation of torch.
TORCH_LIKE = {name: (None, "") for name in ("direct", "discrete", "reversible", "auto")}

FAULTS: tuple[Fault, ...] = (
    Fault("NaN after t = 0.5", sick(), *NOT_FINITE),
    Fault("infinity after t = 0.5", sick(value=float("inf")), *NOT_FINITE),
    Fault("NaN after t = 0.5 for one sample", sick(slice(1, 2)), *NOT_FINITE),
    Fault("solution blows up in finite time", BlowUp, qj.SolveError, "not finite|step size fell"),
    Fault("exception in the forward pass", RaisesForward, LookupError, "sensor fell off"),
    Fault("exception in the backward pass", RaisesBackward, LookupError, "cannot be transposed"),
    Fault("keyboard interrupt", Interrupted, KeyboardInterrupt, "^$"),
    Fault("changes its shape on the way", lambda: Returns(lambda d: d[:, :2], 0.5), ValueError, "returned shape"),
    Fault("returns an integer tensor", lambda: Returns(lambda d: d.long()), TypeError, "returned dtype"),
    Fault("returns another precision", lambda: Returns(lambda d: d.float()), TypeError, "returned dtype"),
    Fault("returns a complex tensor", lambda: Returns(lambda d: d + 0j), TypeError, "returned dtype"),
    Fault("returns None", lambda: Returns(lambda d: None), TypeError, "must return a tensor"),
    Fault("returns a tuple", lambda: Returns(lambda d: (d, d)), TypeError, "must return a tensor"),
    Fault("returns a tensor on another device", lambda: Returns(lambda d: d.to("meta")), ValueError, "a tensor on"),
    Fault("mutates its input in place", InPlace, ValueError, "in place"),
    Fault("returns one buffer again and again", OwnBuffer, ValueError, "in place"),
    Fault("returns its input itself", ReturnsInput),
    Fault("returns a view that is not contiguous", Awkward),
    Fault("keeps every tensor it sees", Hoards),
    Fault("switches grad mode off", GradOff, ValueError, "grad mode"),
    Fault("dropout in train mode", Dropout, qj.SolveError, "draws random numbers", settings=SHORT),
    Fault("BatchNorm in train mode", Normalised, tolerance=1e-3),
    Fault("forward and backward hooks", lambda: Layered(hooks)),
    Fault("weight norm", lambda: Layered(weight_norm)),
    Fault("spectral norm", lambda: Layered(spectral_norm)),
    Fault("torch.utils.checkpoint inside", Checkpointed),
    Fault("an ODE solved inside", Nested),
    Fault("deep copy", lambda: copy.deepcopy(Benign())),
    Fault("pickled and unpickled", lambda: pickled(Benign())),
    Fault("weights saved and loaded", lambda: saved(Benign())),
    Fault("autocast around the solve", Benign, around=bfloat16, tolerance=5e-2, settings={"rtol": 1e-2, "atol": 1e-2}),
    Fault("van der Pol, mu = 1000", VanDerPol, qj.SolveError, "stiff", settings=SHORT, y0=stiff_start),
    Fault("Robertson", Robertson, qj.SolveError, "stiff", settings=SHORT, y0=lambda: stiff_start() / 2),
    Fault(
        "NaN in the gradient of the loss", Benign, qj.SolveError, "not finite|NaN", poison=True, special=NOT_A_NUMBER
    ),
)


def names(faults: Iterable[Fault]) -> list[str]:
    return [fault.name for fault in faults]
