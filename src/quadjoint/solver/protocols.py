"""What the parts of a solve know of each other: the dynamics, a stepper and its steps, a controller of step sizes.

Whatever satisfies `Stepper` can be given as ``method=``, and whatever satisfies `Controller` as
``options={"controller": ...}``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from quadjoint.solver.interpolation import Polynomial
    from quadjoint.solver.methods.jacobian import Jacobian

Time = float | Tensor
Number = TypeVar("Number", float, Tensor)
# (t0, t1) of a step as tensors: learnable times of a fixed grid, or those of each sample's own step, which are shaped
# to broadcast against the state. Steps of the latter are numbered by t0, and t1 = t0 + 1.
Clock = tuple[Tensor, Tensor]
Nudge = tuple[int, int]  # units in the last place by which the times of evaluations at t0 and at t1 are moved


class Derivative(Protocol):
    """dy/dt at a time and a state, ``nudge`` units in the last place beside the time."""

    def __call__(self, t: Time, y: Tensor, nudge: int = 0) -> Tensor: ...


class VectorField(Derivative, Protocol):
    """What a stepper is given: a derivative, and what else is known of it."""

    # df/dy at (t, y, nudge), if it is not to be found by differentiating f
    own_jacobian: Callable[[Time, Tensor, int], Jacobian] | None = None

    @property
    def dynamics(self) -> VectorField:
        """The same function without anything that watches its evaluations."""
        return self

    @property
    def name(self) -> str:
        """For messages."""
        return type(self).__name__

    def as_tensors(self, times: Sequence[float]) -> Sequence[Time]:
        """Several times in the form in which they are evaluated fastest."""
        return times

    def jacobian(self, given: Callable[..., Tensor], t: Time, y: Tensor) -> Tensor:
        """What the user's function for df/dy returns."""
        return given(t, y)


class Step(Protocol):
    """One step from ``t0`` to ``t1`` (either direction), with the states at its ends and between them."""

    t0: float
    t1: float
    y0: Tensor
    y1: Tensor

    @property
    def carry(self) -> Any:
        """What the next step goes on from (a first stage, a history); None to begin anew."""

    @property
    def retry(self) -> Any:
        """What another attempt from ``t0`` goes on from, after this one was rejected; None for what this one had."""

    @property
    def slope(self) -> Tensor | None:
        """f(t0, y0), or what the method has in its place, if it was evaluated."""

    @property
    def settled(self) -> bool:
        """Whether a next step of the same length is cheaper than one of another."""

    @property
    def error(self) -> Tensor | None:
        """Estimate of the local error, asked for while autograd records nothing; None if the method has none."""

    @property
    def ratio(self) -> Tensor | float | None:
        """The error in units of the tolerance if the step knows it; infinite for a step that failed."""

    @property
    def clock(self) -> Clock | None:
        """The ends as tensors that can be differentiated in."""

    def evaluate(self, times: Sequence[float]) -> Tensor:
        """States at ``times`` within the step, stacked along a new first dimension."""

    def evaluate_at(self, times: Tensor) -> Tensor:
        """As ``evaluate``, differentiable in ``times`` and in the ends of the step; only for a step with a clock."""

    def scatter(self, rows: Tensor, times: np.ndarray) -> Tensor:
        """The state of sample ``rows[m]`` at ``times[m]``: one row of the batch each, shape (m, *sample)."""

    def polynomial(self) -> Polynomial | None:
        """The states between the ends as a polynomial, if they are one."""

    def smooth(self) -> Step:
        """The step with the method's own continuous extension, also if observations are made on straight lines."""


class SampleStep(Step, Protocol):
    """A step in which every sample has a length of its own: its ``clock`` has the ends, and t1 = t0 + 1."""

    @property
    def lost(self) -> Tensor | None:
        """Samples whose implicit stages were not found, shape (B,); None if all were."""

    def scatter_at(self, rows: Tensor, theta: Tensor) -> Tensor:
        """As ``scatter``, at fractions ``theta`` of the samples' own steps."""

    def spread(self, theta: Tensor) -> Tensor:
        """The states of all samples at fractions ``theta`` of their own steps, shape (m, *state)."""

    def at_rest(self, moving: Tensor) -> SampleStep:
        """The step with the samples that are not ``moving`` left where they were, in a step of length zero."""


@runtime_checkable
class Stepper(Protocol):
    """Takes single steps. It does not decide whether a step is good enough or how long the next one is.

    A class of your own inherits from this one, sets ``order`` and defines ``step``; it changes the other attributes
    if it can do more. An object of it can be given as ``method=``.

    >>> import torch, quadjoint as qj
    >>> class Ralston(qj.Stepper):
    ...     order = 2
    ...     def step(self, f, t0, t1, y, *, carry=None, nudge=(0, 0), clock=None):
    ...         k1 = f(t0, y, nudge[0])
    ...         k2 = f(t0 + 2 / 3 * (t1 - t0), y + 2 / 3 * (t1 - t0) * k1)
    ...         return qj.HermiteStep(f, t0, t1, y0=y, y1=y + (t1 - t0) * (k1 + 3 * k2) / 4, f0=k1, nudge=nudge)
    >>> t = torch.linspace(0, 1, 21)
    >>> ys = qj.odeint(lambda t, y: -y, torch.ones(1), t, method=Ralston())
    >>> round(float(ys[-1]), 3)
    0.368
    """

    order: int
    adaptive: bool = False  # its steps estimate their error
    free: bool = False  # it chooses and judges the lengths of its steps itself
    recordable: bool = True  # autograd can record its steps
    transformable: bool = True  # its steps are made of torch's own operations, which torch.func differentiates and maps
    transposable: bool = False  # its steps are Runge-Kutta steps, which "discrete" transposes
    clocked: bool = False  # its steps can be differentiated in their ends
    keeps_inputs: bool = False  # its steps hold the inputs of their stages
    evaluations: int = 6  # of f that a step takes, about
    dense_order: int | None = None  # of the continuous extension, if it is known

    @property
    def estimate_order(self) -> int:
        """The power of the step size with which the error estimate falls."""
        return self.order

    @property
    def name(self) -> str:
        """For messages."""
        return type(self).__name__

    @property
    def eager(self) -> Stepper:
        """The stepper for other dynamics than the forward solve's, which may be compiled."""
        return self

    @property
    def twice(self) -> Stepper:
        """The stepper whose steps, as autograd records them, can be differentiated twice."""
        return self

    @property
    def smooth(self) -> Stepper:
        """The stepper with the method's own continuous extension, whatever observations are made with."""
        return self

    def within(self, rtol: float | Tensor, atol: float | Tensor) -> Stepper:
        """The stepper with tolerances for a state of another shape, if it iterates within its steps."""
        return self

    def step(
        self,
        f: VectorField,
        t0: float,
        t1: float,
        y: Tensor,
        *,
        carry: Any = None,
        nudge: Nudge = (0, 0),
        clock: Clock | None = None,
    ) -> Step:
        """The step from y(t0) = ``y`` to ``t1``, going on from what the step before gave as its ``carry``."""
        raise NotImplementedError

    def forget(self, step: Step) -> None:
        """Free what an accepted step, which may be kept, holds for the next one only; its ``carry`` has been read."""
        return None


@runtime_checkable
class Controller(Protocol):
    """Turns the errors of steps into the factor by which the step size changes. It has no state of its own.

    A class of your own needs the method ``factor`` only.
    """

    @property
    def memoryless(self) -> bool:
        """Whether factors depend on ``ratio`` alone, so that ``history`` and ``growth`` need not be kept."""
        return False

    def factor(
        self, ratio: Number, history: tuple[Number, Number], *, order: int, safety: float, growth: Number | float
    ) -> Number:
        """The factor, which is then kept between ``dfactor`` and ``ifactor``.

        Errors are numbers or, if samples take steps of their own, tensors with one number for each sample.

        ``ratio`` is the error of the step just made in units of the tolerance (at most one if it was accepted),
        ``history`` those of the two steps accepted before, the later one first; ``order`` is the power of the step
        size with which errors fall, ``safety`` the part of the longest possible step to be taken, and ``growth`` the
        length of the step just made over that of the one accepted before.
        """
        ...
