"""The forward solution, kept as polynomials, in panels that each hold q nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from quadjoint.solver.interpolation import Polynomial, powers
from quadjoint.solver.protocols import Step


class Sampled:
    """A step that is known only by evaluating it."""

    def __init__(self, step: Step) -> None:
        self.step, self.t0, self.t1, self.nudge = step, step.t0, step.t1, (0, 0)

    def states(self, theta: np.ndarray) -> Tensor:
        times = self.t0 + theta * (self.t1 - self.t0)
        return self.step.evaluate(times.tolist()).reshape(len(theta), -1)

    def start(self) -> None:
        return None


Piece = Polynomial | Sampled  # the solution over one accepted step


def piece_of(step: Step) -> Piece:
    """An accepted step with the method's own continuous extension, also if observations are straight lines."""
    step = step.smooth()
    return step.polynomial() or Sampled(step)


def size_of(piece: Piece) -> int:
    """Bytes of a polynomial."""
    tensors = (piece.y0, piece.coefficients) if isinstance(piece, Polynomial) else ()
    return sum(x.numel() * x.element_size() for x in tensors)


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
    polynomials = [piece for piece in pieces if isinstance(piece, Polynomial)]
    if whole and len(polynomials) == len(panels) > 1:
        coefficients = torch.stack([piece.coefficients for piece in polynomials])
        y0 = torch.stack([piece.y0 for piece in polynomials]).reshape(len(pieces), 1, -1)
        weights = torch.as_tensor(powers(c, coefficients.shape[1]), dtype=y0.dtype, device=y0.device)
        return torch.matmul(weights, coefficients).add_(y0)
    return torch.stack([panel.piece.states(panel.theta(c)) for panel in panels])
