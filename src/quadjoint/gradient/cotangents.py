"""The gradient of the loss in the observations, in the order in which the backward pass meets them.

States asked of the continuous solution after the solve are observations too: their gradients are handed in while
autograd's backward pass runs, before that of the solve itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.errors import SolveError
from quadjoint.solver.integrate import Integration
from quadjoint.solver.observe import SampleObserver
from quadjoint.solver.spec import Spec


@dataclass(frozen=True)
class Query:
    """States asked of the continuous solution at ``times``, and the gradient of the loss in them."""

    times: list[float]
    grads: Tensor
    backward_pass: int | None


class Mailbox:
    """Where queries wait for the backward pass of their solve."""

    def __init__(self) -> None:
        self.queries: list[Query] = []

    def put(self, times: list[float], grads: Tensor) -> None:
        self.queries.append(Query(times, grads, private.backward_pass()))

    def take(self) -> list[Query]:
        """The queries of the running backward pass; what one that failed has left behind is dropped."""
        now = private.backward_pass()
        queries, self.queries = self.queries, []
        return [query for query in queries if query.backward_pass == now]


@dataclass(frozen=True)
class Cotangents:
    """Gradients of observations, sorted in the direction of the solve.

    Of times per sample, each belongs to one ``rows`` of the batch, and a gradient has the shape of a sample.
    """

    times: np.ndarray
    grads: Tensor  # shape (n, *state), or (n, *sample)
    rows: Tensor | None
    keys: np.ndarray  # the times, increasing also for a solve backwards in time
    ends: np.ndarray  # of the accepted steps, likewise, the start of the first one first
    shape: torch.Size

    @classmethod
    def of(cls, spec: Spec, run: Integration, grad_ys: Tensor, queries: Sequence[Query]) -> Cotangents:
        observer = spec.make_observer()
        if isinstance(observer, SampleObserver):
            times, rows, sign = observer.sorted, observer.index(0, len(observer.rows), grad_ys.device), 1.0
        else:
            times, rows, sign = np.array(spec.times(run.event_time)), None, observer.sign
        if queries:
            assert rows is None
            times = np.concatenate([times, *(query.times for query in queries)])
            order = np.argsort(sign * times, kind="stable")
            grads = torch.cat([grad_ys, *(query.grads for query in queries)])
            times, grad_ys = times[order], grads[torch.as_tensor(order, device=grads.device)]
        ends = sign * np.array([observer.start, *(taken.t1 for taken in run.taken)])
        return cls(times, grad_ys, rows, sign * times, ends, spec.f.shape)

    def range_in_step(self, n: int) -> tuple[int, int]:
        """The range of the observations in step ``n``, past its start and up to its end."""
        first, last = np.searchsorted(self.keys, self.ends[n : n + 2], side="right")
        return int(first), int(last)

    def check_finite(self) -> None:
        """Refuse a loss whose gradient no solve can carry on."""
        if not bool(torch.isfinite(self.grads).all()):
            raise SolveError("The gradient of the loss has entries that are NaN or infinite; check the loss.")

    def at_start(self, a: Tensor) -> Tensor:
        """The adjoint at the initial time with the observations made there."""
        first = int(np.searchsorted(self.keys, self.ends[0], side="right"))
        if self.rows is None:
            return a + self.grads[:first].sum(0)
        return a.clone().index_add_(0, self.rows[:first], self.grads[:first])

    def spread(self, first: int, last: int, weights: np.ndarray, adjoints: Tensor) -> None:
        """Add observations ``first`` to ``last`` to rows of ``adjoints``, each times its column of ``weights``.

        ``weights`` has shape (observations, rows of adjoints); a row of adjoints is a flat state.
        """
        w = torch.as_tensor(weights.T.copy(), dtype=adjoints.dtype, device=adjoints.device)
        g = self.grads[first:last]
        if self.rows is None:
            adjoints.addmm_(w, g.reshape(len(g), -1))
        else:
            parts = w[:, :, None] * g.reshape(1, len(g), -1)
            adjoints.view(len(w), self.shape[0], -1).index_add_(1, self.rows[first:last], parts)
