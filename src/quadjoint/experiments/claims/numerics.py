"""What the paper says of gradients known in closed form, of rules of integration and of memory."""

from __future__ import annotations

from quadjoint.experiments.claims.checks_accuracy import (
    beats_any_power,
    close_errors,
    different_errors,
    larger_errors,
    most_accurate,
    near,
    order,
)
from quadjoint.experiments.claims.checks_cost import constant_memory, less_memory
from quadjoint.experiments.verdicts import Claim, every, opposite

_QUARTER = "power within a quarter"
_RULES = ("trapezoid", "simpson", "boole", "gauss", "monte-carlo")
_CONSTANT = "grows by less than a quarter, with a state of one number, as in the paper, and of 1000"
_GROWS = "by a quarter or more, with a state of one number, as in the paper, and of 1000"


def _others(rule: str) -> tuple[str, ...]:
    return tuple(name for name in _RULES if name != rule)


TOY_GRADIENT = [
    Claim(
        "GQ’s gradients are those of the adjoint.",
        near("gq-paper", "adjoint", 10.0, ("z0", "a", "T")),
        "apart by less than ten times the relative tolerance, at every end time, at both tolerances",
    ),
    Claim(
        "GQ’s gradients are as accurate as the adjoint’s.",
        close_errors("gq-paper", "adjoint", 3.0, ("z0", "a", "T")),
        "errors within a factor of three, on average over end times, at both tolerances",
    ),
    Claim(
        "Direct, adjoint and GQ have the same loss.",
        every(*(close_errors("gq-paper", other, 1.001, ("loss",)) for other in ("direct", "adjoint"))),
    ),
    Claim(
        "Direct has other gradients than the adjoint.",
        different_errors("direct", "adjoint", 1.001, ("z0", "a")),
        "in z0 and in a, at both tolerances; the gradient in T is the same",
    ),
    Claim(
        "Direct’s errors are larger than the adjoint’s.",
        larger_errors("direct", "adjoint", ("z0", "a")),
        "in z0 and in a, on average over end times, at both tolerances; the gradient in T is the same",
    ),
    Claim(
        "Another forward solve changes the results: MALI’s.",
        different_errors("mali", "adjoint", 1.001, ("loss", "a")),
        "errors of the loss and of the gradient in a; the paper says it of ACA too, which solves forwards as direct "
        "does here",
    ),
    Claim("discrete has the gradient of direct.", close_errors("discrete", "direct", 1.001), ours=True),
]
INTEGRATION = [
    Claim("The trapezoid rule’s error falls with the square.", order("trapezoid", 2, 0.25), _QUARTER),
    Claim("Simpson’s with the fourth power.", order("simpson", 4, 0.25), _QUARTER),
    Claim("Boole’s with the sixth power.", order("boole", 6, 0.25), _QUARTER),
    Claim("Monte Carlo’s with the square root.", order("monte-carlo", 0.5, 0.15), "power within 0.15"),
    Claim(
        "Gauss-Legendre quadrature’s falls significantly faster than any power.",
        beats_any_power("gauss", 6),
        "with a power that grows with the number of points, beyond Boole’s",
    ),
    Claim(
        "Gauss-Legendre quadrature is the most accurate.",
        most_accurate("gauss", _others("gauss"), (5, 9)),
        "with 5 and with 9 evaluations",
    ),
    Claim(
        "Monte Carlo is the least accurate.",
        most_accurate("monte-carlo", _others("monte-carlo"), (5, 9), least=True),
        "with 5 and with 9 evaluations",
    ),
]
MEMORY = [
    Claim("GQ’s memory is constant in the tolerance.", constant_memory("gq-paper"), _CONSTANT),
    Claim("The adjoint’s memory is constant in the tolerance.", constant_memory("adjoint"), _CONSTANT),
    Claim(
        "The adjoint needs slightly less memory than GQ.",
        less_memory("adjoint", "gq-paper"),
        "at the tightest tolerance, with both states",
    ),
    Claim("Direct’s memory grows with the steps.", opposite(constant_memory("direct")), _GROWS),
    Claim("ACA’s memory grows with the steps.", opposite(constant_memory("aca")), _GROWS),
    Claim("MALI’s memory does not grow with the steps.", constant_memory("mali"), _CONSTANT, ours=True),
]
