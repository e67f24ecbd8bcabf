"""From errors of steps to step sizes, after Soderlind's digital filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quadjoint.errors import nearest
from quadjoint.solver.protocols import Controller, Number


@dataclass(frozen=True)
class PIDController(Controller):
    """Proportional, integral and derivative control of the step size.

    With the error r_n of a step in units of the tolerance and a method of order k, the step size is multiplied by

        safety * r_n^(-(p + i + d) / k) * r_(n-1)^((p + 2 d) / k) * r_(n-2)^(-d / k),

    where r_(n-1) and r_(n-2) belong to the steps accepted before (Soderlind, "Digital filters in adaptive
    time-stepping", ACM Trans. Math. Softw. 29, 2003). The coefficients are named and scaled as in diffrax: ``i`` pulls
    the error towards the tolerance, ``p`` answers to its change, ``d`` to the change of that. i = 1 alone is the
    elementary controller. Smaller i and positive p avoid sequences of rejections if stability limits the step.

    Args:
        p, i, d: the coefficients, not divided by the order.
        shrink: whether a step that was accepted may be followed by a shorter one.

    >>> import torch, quadjoint as qj
    >>> control = {"controller": qj.PIDController(p=0.3, i=0.4)}
    >>> ys = qj.odeint(lambda t, y: -y, torch.ones(1), torch.tensor([0.0, 1.0]), rtol=1e-6, options=control)
    >>> round(float(ys[-1]), 5)
    0.36788
    """

    p: float = 0.0
    i: float = 1.0
    d: float = 0.0
    shrink: bool = True

    def __post_init__(self) -> None:
        if not self.p + self.i + self.d > 0.0:
            raise ValueError(
                f"PIDController needs p + i + d > 0, so that larger errors make shorter steps; got {self}."
            )

    def exponents(self, order: int) -> tuple[float, float, float]:
        """Of r_n, r_(n-1) and r_(n-2)."""
        return -(self.p + self.i + self.d) / order, (self.p + 2.0 * self.d) / order, -self.d / order

    @property
    def memoryless(self) -> bool:
        """Whether the steps before have no influence."""
        return self.exponents(1)[1:] == (0.0, 0.0)

    def factor(
        self, ratio: Number, history: tuple[Number, Number], *, order: int, safety: float, growth: Number | float = 1.0
    ) -> Number:
        now, *before = self.exponents(order)
        factor = safety * ratio**now
        for exponent, error in zip(before, history, strict=True):
            if exponent != 0.0:
                factor = factor * error**exponent
        return factor if self.shrink else _at_least_one(factor, ratio)


def _at_least_one(factor: Any, ratio: Any) -> Any:
    """The factor, which does not shorten a step that was good enough."""
    if isinstance(factor, Tensor):
        return torch.maximum(factor, ratio < 1.0)
    return factor if ratio >= 1.0 else max(factor, 1.0)


class Gustafsson(PIDController):
    """The PI controller for explicit methods (Gustafsson 1991; Hairer and Wanner, section IV.2): p = 0.4, i = 0.3."""

    def exponents(self, order: int) -> tuple[float, float, float]:
        beta = 0.4 / order
        return -(1.0 / order - 0.75 * beta), beta, 0.0


class Predictive(Controller):
    """The controller for implicit methods (Gustafsson 1994; Hairer and Wanner, section IV.8).

    Errors of stiff solves change slowly and steadily, as steps become longer and longer. It expects the next one to
    change as the last one did: the step size is multiplied by the smaller one of safety * r_n^(-1/k) and that times
    (r_(n-1) / r_n)^(1/k) h_n / h_(n-1).
    """

    def factor(
        self, ratio: Number, history: tuple[Number, Number], *, order: int, safety: float, growth: Number | float = 1.0
    ) -> Number:
        elementary = safety * ratio ** (-1.0 / order)
        change = (_at_least(history[0], 1e-2) / _at_least(ratio, 1e-2)) ** (1.0 / order)
        return _smaller_if(ratio <= 1.0, elementary * change * growth, elementary)


def _at_least(x: Any, least: float) -> Any:
    return x.clamp(min=least) if isinstance(x, Tensor) else max(x, least)


def _smaller_if(accepted: Any, x: Any, other: Any) -> Any:
    """The smaller one of both after a step that was accepted, ``other`` after one that was not."""
    if isinstance(other, Tensor):
        return torch.where(accepted, torch.minimum(x, other), other)
    return min(x, other) if accepted else other


# As in torchdiffeq, "i" and "pi" do not shorten a step that was good enough. The coefficients of "pid" are those of
# Kennedy, Carpenter and Lewis (Appl. Numer. Math. 35, 2000), found for explicit methods limited by stability.
CONTROLLERS: dict[str, Controller] = {
    "i": PIDController(shrink=False),
    "pi": Gustafsson(p=0.4, i=0.3, shrink=False),
    "pid": PIDController(p=0.14, i=0.25, d=0.10),
    "predictive": Predictive(),
}


@dataclass(frozen=True)
class GivenController(Controller):
    """A user's object, of which nothing but its method ``factor`` is known."""

    given: Any

    def factor(self, ratio: Number, history: tuple[Number, Number], **named: Any) -> Number:
        return self.given.factor(ratio, history, **named)


def controller_of(given: Any) -> Controller:
    """A controller by its name, or itself."""
    if isinstance(given, str):
        if given not in CONTROLLERS:
            raise ValueError(
                f"options['controller'] must be 'i', 'pi', 'pid', 'predictive' or an object; got {given!r}."
                f"{nearest(given, CONTROLLERS)}"
            )
        return CONTROLLERS[given]
    if isinstance(given, type) or not callable(getattr(given, "factor", None)):
        raise TypeError(
            f"options['controller'] must be a name or an object with a method 'factor', such as qj.PIDController(); "
            f"got {given!r}."
        )
    return given if isinstance(given, Controller) else GivenController(given)
