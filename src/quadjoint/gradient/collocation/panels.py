"""The forward solution, kept as polynomials, in panels that each hold q nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from quadjoint.solver.interpolation import HermiteStep
from quadjoint.solver.methods.runge_kutta import RungeKuttaStep
from quadjoint.solver.protocols import Step


class Piece(Protocol):
    """The solution over one accepted step."""

    t0: float
    t1: float
    nudge: tuple[int, int]

    def states(self, theta: np.ndarray) -> Tensor:
        """At fractions of the step, flat: shape (len(theta), numbers)."""

    def start(self) -> tuple[Tensor, Tensor] | None:
        """The state at the start and the derivative there, if it was a stage of the step."""


class Polynomial:
    """A step as y0 + sum_d c_d theta^d: less to keep than its stages."""

    __slots__ = ("coefficients", "nudge", "slope", "t0", "t1", "y0")

    def __init__(self, step: Step, coefficients: Tensor, *, nudge: tuple[int, int], slope: bool) -> None:
        self.t0, self.t1, self.y0, self.coefficients = step.t0, step.t1, step.y0, coefficients
        self.nudge, self.slope = nudge, slope  # whether the first coefficient is h f(t0, y0)

    def states(self, theta: np.ndarray) -> Tensor:
        powers = np.power.outer(theta, np.arange(1, len(self.coefficients) + 1))
        weights = torch.as_tensor(powers, dtype=self.y0.dtype, device=self.y0.device)
        return torch.addmm(self.y0.reshape(1, -1), weights, self.coefficients)

    def start(self) -> tuple[Tensor, Tensor] | None:
        if not self.slope:
            return None
        return self.y0, (self.coefficients[0] / (self.t1 - self.t0)).reshape(self.y0.shape)


class Sampled:
    """A step that is known only by evaluating it."""

    def __init__(self, step: Step) -> None:
        self.step, self.t0, self.t1, self.nudge = step, step.t0, step.t1, (0, 0)

    def states(self, theta: np.ndarray) -> Tensor:
        times = self.t0 + theta * (self.t1 - self.t0)
        return self.step.evaluate(times.tolist()).reshape(len(theta), -1)

    def start(self) -> None:
        return None


def piece_of(step: Step) -> Piece:
    """An accepted step with the method's own continuous extension, also where observations are straight lines."""
    if isinstance(step, RungeKuttaStep):
        step = step.smooth()
        table = step.method.tableau.dense
        dense = torch.as_tensor(table.T * (step.t1 - step.t0), dtype=step.y0.dtype, device=step.y0.device)
        slope = table[0, 0] == 1.0 and not table[1:, 0].any()
        coefficients = dense @ step.stacked().reshape(len(step.ks), -1)
        if step.lengths is not None:
            coefficients = (coefficients.view(-1, *step.y0.shape) * step.lengths).flatten(1)
        return Polynomial(step, coefficients, nudge=step.nudge, slope=slope)
    if isinstance(step, HermiteStep):
        step, h = step.smooth(), step.t1 - step.t0
        rise, f0, f1 = step.y1 - step.y0, step.f0 * h, step.f1 * h
        coefficients = torch.stack([f0, 3.0 * rise - 2.0 * f0 - f1, f0 + f1 - 2.0 * rise])
        return Polynomial(step, coefficients.flatten(1), nudge=(0, 0), slope=step.exact_slopes)
    return Sampled(step)


@dataclass(frozen=True)
class Panel:
    """A part of a step, from the fraction ``low`` to ``high`` of it, with the observations inside."""

    index: int  # of the step
    piece: Piece
    low: float = 0.0
    high: float = 1.0
    observations: tuple[int, int] = (0, 0)

    @property
    def t0(self) -> float:
        return self.piece.t0 + self.low * (self.piece.t1 - self.piece.t0)

    @property
    def h(self) -> float:
        return (self.high - self.low) * (self.piece.t1 - self.piece.t0)

    def theta(self, c: np.ndarray) -> np.ndarray:
        """Fractions of the step, from fractions of the panel."""
        return self.low + c * (self.high - self.low)

    def times(self, c: np.ndarray) -> np.ndarray:
        return self.piece.t0 + self.theta(c) * (self.piece.t1 - self.piece.t0)

    def halves(self, times: np.ndarray) -> Iterator[Panel]:
        """The later half, then the earlier one; ``times`` are those of all observations."""
        middle = 0.5 * (self.low + self.high)
        first, last = self.observations
        h = self.piece.t1 - self.piece.t0
        early = int(np.sum((times[first:last] - self.piece.t0) / h <= middle))
        yield replace(self, low=middle, observations=(first + early, last))
        yield replace(self, high=middle, observations=(first, first + early))


def states_of(panels: Sequence[Panel], c: np.ndarray) -> Tensor:
    """States at the nodes of several panels, shape (panels, nodes, numbers)."""
    pieces = [panel.piece for panel in panels]
    whole = all(panel.low == 0.0 and panel.high == 1.0 for panel in panels)
    if len(panels) > 1 and whole and all(isinstance(piece, Polynomial) for piece in pieces):
        coefficients = torch.stack([piece.coefficients for piece in pieces])  # type: ignore[attr-defined]
        y0 = torch.stack([piece.y0 for piece in pieces]).reshape(len(pieces), 1, -1)  # type: ignore[attr-defined]
        powers = np.power.outer(c, np.arange(1, coefficients.shape[1] + 1))
        weights = torch.as_tensor(powers, dtype=y0.dtype, device=y0.device)
        return torch.matmul(weights, coefficients).add_(y0)
    return torch.stack([panel.piece.states(panel.theta(c)) for panel in panels])
