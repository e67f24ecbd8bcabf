"""What must come of misbehaving dynamics: the right result, or an error in words.

The tests and the table in ``docs/reliability.md`` run the same list.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import quadjoint as qj
from quadjoint.errors import NonFiniteStateError
from reliability.hostile import (
    TIMES,
    Awkward,
    Benign,
    BlowUp,
    Checkpointed,
    Dropout,
    GradOff,
    Hoards,
    InPlace,
    Interrupted,
    Layered,
    Nan,
    Nested,
    Normalised,
    OwnBuffer,
    RaisesBackward,
    RaisesForward,
    Returns,
    ReturnsInput,
    Robertson,
    VanDerPol,
    hooks,
    pickled,
    saved,
    spectral_norm,
    weight_norm,
)

GRADIENTS = ("direct", "discrete", "gq", "gq-paper", "adjoint", "seminorm", "reversible", "auto")


Special = dict[str, tuple[type[BaseException] | None, str]]


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
    special: Special = field(default_factory=dict)
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
        warnings.filterwarnings("ignore", "None of the inputs have requires_grad", UserWarning)  # reentrant checkpoints
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
RECORDED: Special = {name: (None, "") for name in ("direct", "auto")}
# The recorded and transposed solves are as transparent to NaN as any other operation of torch.
TORCH_LIKE: Special = {name: (None, "") for name in ("direct", "discrete", "auto")}

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
    Fault("spectral norm in train mode", lambda: Layered(spectral_norm)),
    Fault("torch.utils.checkpoint inside", Checkpointed),
    Fault("reentrant checkpoint", lambda: Checkpointed(True), RuntimeError, "use_reentrant=True", special=RECORDED),
    Fault("an ODE solved inside", Nested),
    Fault("deep copy", lambda: copy.deepcopy(Benign())),
    Fault("pickled and unpickled", lambda: pickled(Benign())),
    Fault("weights saved and loaded", lambda: saved(Benign())),
    Fault("autocast around the solve", Benign, around=bfloat16, tolerance=5e-2, settings={"rtol": 1e-2, "atol": 1e-2}),
    Fault("van der Pol, mu = 1000", VanDerPol, qj.SolveError, "stiff", settings=SHORT, y0=stiff_start),
    Fault("Robertson", Robertson, qj.SolveError, "stiff", settings=SHORT, y0=lambda: stiff_start() / 2),
    Fault(
        "NaN in the gradient of the loss",
        Benign,
        qj.SolveError,
        "gradient of the loss",
        poison=True,
        special=TORCH_LIKE,
    ),
)
