"""Functions that give other values whenever they are called."""

from __future__ import annotations

import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.errors import SolveError
from quadjoint.solver.spec import Spec


class RandomnessCheck:
    """Notices a function that draws random numbers (dropout in train mode).

    Adaptive steps cannot resolve such dynamics, and a backward pass that evaluates them again differentiates another
    function than was solved. The default generator's state is compared once a solve; only if it has moved, which
    another thread may have caused, is f evaluated a few times at one point.
    """

    ADVICE = (
        "f draws random numbers in every evaluation (dropout in train mode?), so it is not a function of (t, y). Call "
        "f.eval(), or draw the numbers once before the solve; with fixed steps, gradient='direct' can be used as it is."
    )

    def __init__(self, device: torch.device) -> None:
        self.cuda = device if device.type == "cuda" else None
        self.before = self._state()

    def _state(self) -> list[bytes]:
        """Of the generators, which lie on the host."""
        states = [torch.get_rng_state(), *([] if self.cuda is None else [torch.cuda.get_rng_state(self.cuda)])]
        if private.inside_transform():  # whose tensors have no memory of their own
            return [bytes(state.tolist()) for state in states]
        return [state.numpy().tobytes() for state in states]

    def _draws_numbers(self, spec: Spec, y: Tensor) -> bool:
        if self.before == self._state():
            return False
        f = spec.f
        with torch.no_grad():
            first, *others = (f.checked(f.time(spec.start), y.detach()) for _ in range(8))
        return any(not torch.equal(first, other) for other in others)

    def refuse(self, spec: Spec, y: Tensor, *, fixed_is_fine: bool) -> None:
        """An error if f is random, unless its steps are fixed and no other evaluation than theirs is needed."""
        if (spec.adaptive or not fixed_is_fine) and self._draws_numbers(spec, y):
            raise ValueError(self.ADVICE)

    def explain(self, error: SolveError, spec: Spec, y: Tensor) -> None:
        """Name randomness as the cause of a solve that failed."""
        if self._draws_numbers(spec, y):
            raise type(error)(f"{self.ADVICE} The solve ended with: {error}") from None
