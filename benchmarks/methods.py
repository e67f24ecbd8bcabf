"""What is timed: a method is a name and a way to make a ``Runner`` for a case. Here are those of quadjoint."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import quadjoint as qj
from benchmarks.problems import Case

REFERENCES = Path(__file__).resolve().parents[1] / "outputs" / "benchmarks" / "references"
WORTH_STORING = 2.0  # seconds
SMALL_WIDTH = 100  # networks up to this width are also measured compiled


class NotApplicable(Exception):
    """A method that makes no sense for a case; it is left out of the tables without a word."""


class Runner:
    """One gradient of one case by one method."""

    torch_memory = True  # whether tensors of torch hold its memory, so that the peak can be measured

    def run(self) -> Any:
        """Forward and backward pass; this is timed."""
        raise NotImplementedError

    def first(self) -> tuple[list[Tensor], dict[str, Any]]:
        """The same, returning the gradients and figures of the solve."""
        raise NotImplementedError


@dataclass(frozen=True)
class Method:
    """``make(case, tolerance)`` returns a runner; raises ``NotApplicable``, or ``ImportError`` without its package."""

    name: str
    make: Callable[[Case, float], Runner]
    compiled: bool = False  # the first call compiles and may take long

    @property
    def library(self) -> str:
        return self.name.partition(":")[0]


class Quadjoint(Runner):
    def __init__(self, case: Case, tolerance: float, gradient: str | qj.Gradient, **more: Any) -> None:
        self.case = case
        self.options: dict[str, Any] = {"rtol": tolerance, "atol": tolerance, "gradient": gradient, **more}

    def run(self) -> Any:
        case = self.case
        ys = qj.odeint(case.f, case.y0, case.t, **self.options)
        return torch.autograd.grad(case.value(ys), case.wrt)

    def first(self) -> tuple[list[Tensor], dict[str, Any]]:
        case = self.case
        solution = qj.solve(case.f, case.y0, case.t, **self.options)
        gradients = torch.autograd.grad(case.value(solution.ys), case.wrt)
        stats = solution.stats
        figures = {
            "evaluations": {
                "forward": stats.forward_evaluations,
                "backward": stats.backward_evaluations,
                "vjp_state": stats.vjp_state,
                "vjp_params": stats.vjp_params,
            },
            "steps": {
                "accepted": stats.accepted_steps,
                "rejected": stats.rejected_steps,
                "backward_accepted": stats.backward_accepted_steps,
                "backward_rejected": stats.backward_rejected_steps,
            },
            "chosen": stats.method,
            "reason": stats.reason,
            "gradient_error_estimate": stats.gradient_error,
        }
        return list(gradients), figures


def _ours(name: str, gradient: str | qj.Gradient, *, compile: bool = False) -> Method:
    def make(case: Case, tolerance: float) -> Runner:
        if compile and _width(case) > SMALL_WIDTH:
            raise NotApplicable("only small networks are measured compiled")
        return Quadjoint(case, tolerance, gradient, compile=compile)

    return Method(f"quadjoint:{name}", make, compiled=compile)


def _width(case: Case) -> int:
    """The widest layer of a network of linear layers; convolutions count as wide."""
    if case.kind == "conv":
        return SMALL_WIDTH + 1
    return max(p.shape[0] for p in case.f.parameters())


def ours() -> list[Method]:
    return [
        _ours("auto", "auto"),
        _ours("direct", "direct"),
        _ours("discrete", "discrete"),
        _ours("discrete-lean", qj.DiscreteAdjoint(activations=0)),
        _ours("discrete-joint", qj.DiscreteAdjoint(mode="joint")),
        _ours("discrete-stacked", qj.DiscreteAdjoint(mode="stacked")),
        _ours("gq", "gq"),
        _ours("gq-paper", "gq-paper"),
        _ours("adjoint", "adjoint"),
        _ours("seminorm", "seminorm"),
        _ours("auto-compiled", "auto", compile=True),
        _ours("direct-compiled", "direct", compile=True),
        _ours("discrete-compiled", "discrete", compile=True),
    ]


def reference(case: Case) -> list[Tensor]:
    """The gradient in float64 to 1e-9: dopri8 and its exact transpose. ``case`` is built in float64."""
    gradient = qj.DiscreteAdjoint(mode="joint")
    ys = qj.odeint(case.f, case.y0, case.t, method="dopri8", rtol=1e-9, atol=1e-9, gradient=gradient)
    return list(torch.autograd.grad(case.value(ys), case.wrt))


def stored_reference(case: Case, name: str) -> list[Tensor]:
    """The reference, computed once for every problem: those of wide networks take minutes.

    A file is named by a fingerprint of all numbers of the case and of some values of f, so that a changed problem is a
    new one.
    """
    with torch.no_grad():  # what f holds besides parameters and buffers, such as a path of noise, shows in its values
        values = [case.f(t, case.y0) for t in torch.linspace(float(case.t.min()), float(case.t.max()), 5).to(case.y0)]
    numbers = [*case.f.state_dict().values(), case.y0, case.t, *case.constants.values(), *values]
    digest = hashlib.sha256()
    for x in numbers:
        digest.update(x.detach().numpy().tobytes())
    path = REFERENCES / f"{name}-{digest.hexdigest()[:16]}.pt"
    if path.exists():
        return list(torch.load(path))
    start = time.perf_counter()
    found = reference(case)
    if time.perf_counter() - start > WORTH_STORING:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save([g.detach() for g in found], path.with_suffix(".partial"))
        path.with_suffix(".partial").replace(path)
    return found


def relative_error(found: list[Tensor], wanted: list[Tensor]) -> float:
    """Relative error of all gradients as one vector."""
    pairs = list(zip(found, wanted, strict=True))
    gap = sum(float((a.double() - b).square().sum()) for a, b in pairs)
    return (gap / sum(float(b.square().sum()) for _, b in pairs)) ** 0.5
