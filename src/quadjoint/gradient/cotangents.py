"""The gradient of the loss in the observations, in the order in which the backward pass meets them.

States asked of the continuous solution after the solve are observations too: their gradients are handed in while
autograd's backward pass runs, before that of the solve itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from quadjoint.autograd import private
from quadjoint.errors import SolveError
from quadjoint.solver.independent.loop import SampleIntegration
from quadjoint.solver.independent.sample_observer import place
from quadjoint.solver.integrate import Integration
from quadjoint.solver.observe import Observer, SampleObserver
from quadjoint.solver.spec import Spec


@dataclass(frozen=True)
class Query:
    """States asked of the continuous solution at ``times``, and the gradient of the loss in them."""

    times: Sequence[float]
    rows: Tensor | None  # of the batch, if a state is that of one sample
    grads: Tensor
    backward_pass: int | None = None


class Mailbox:
    """Where queries wait for the backward pass of their solve."""

    def __init__(self) -> None:
        self.queries: list[Query] = []

    def put(self, times: Sequence[float], rows: Tensor | None, grads: Tensor) -> None:
        self.queries.append(Query(times, rows, grads, private.backward_pass()))

    def take(self) -> list[Query]:
        """The queries of the running backward pass. Those of others stay: one may run inside of another."""
        now = private.backward_pass()
        taken = [query for query in self.queries if query.backward_pass == now]
        self.queries = [query for query in self.queries if query.backward_pass != now]
        return taken


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
    order: np.ndarray | None = None  # in which they were made, if that is another: the n-th here is number order[n]

    @classmethod
    def of(cls, spec: Spec, run: Integration, grad_ys: Tensor, queries: Sequence[Query]) -> Cotangents:
        times, rows, sign = _observed(spec, run, grad_ys.device)
        if queries:
            times = np.concatenate([times, *(query.times for query in queries)])
            grad_ys = torch.cat([grad_ys, *(query.grads for query in queries)])
            if rows is not None:
                rows = torch.cat([rows, *(query.rows for query in queries if query.rows is not None)])
        keys, order = sign * times, None
        if (np.diff(keys) < 0.0).any():
            order = np.argsort(keys, kind="stable")
            index = torch.as_tensor(order, device=grad_ys.device)
            times, keys, grad_ys, rows = (
                times[order],
                keys[order],
                grad_ys[index],
                None if rows is None else rows[index],
            )
        start = run.taken[0].t0 if run.taken else times[0]
        ends = sign * np.array([start, *(taken.t1 for taken in run.taken)])
        return cls(times, grad_ys, rows, keys, ends, spec.f.shape, order)

    def as_made(self) -> tuple[np.ndarray, Tensor, Tensor | None]:
        """Times, gradients and rows in the order in which the states were collected, and then asked for."""
        if self.order is None:
            return self.times, self.grads, self.rows
        back = np.argsort(self.order)
        index = torch.as_tensor(back, device=self.grads.device)
        return self.times[back], self.grads[index], None if self.rows is None else self.rows[index]

    def apart(self, count: int) -> tuple[Tensor, Query | None]:
        """The gradients of the ``count`` observations as they were collected, and those of states asked for later."""
        times, grads, rows = self.as_made()
        if len(times) == count:
            return grads, None
        return grads[:count], Query(times[count:].tolist(), None if rows is None else rows[count:], grads[count:])

    def observations(self, count: int) -> tuple[Cotangents, Query | None]:
        """Of a batch that shares its times, the ``count`` observations alone, and what was asked for later."""
        grads, asked = self.apart(count)
        if asked is None:
            return self, None
        own = np.arange(len(self.times)) if self.order is None else self.order
        kept = own < count
        return replace(self, times=self.times[kept], grads=grads, keys=self.keys[kept], order=None), asked

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

    def at_end(self, n: int, a: Tensor) -> tuple[int, Tensor]:
        """The adjoint at the end of step ``n``, flat, with the observations made there; the first one of them."""
        first, last = self.range_in_step(n)
        late = first + int(np.searchsorted(self.keys[first:last], self.ends[n + 1]))
        if late == last:
            return late, a
        g = self.grads[late:last].reshape(last - late, -1)
        if self.rows is None:
            return late, a + g.sum(0)
        return late, a.view(self.shape[0], -1).index_add(0, self.rows[late:last], g).reshape(-1)

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


def _observed(spec: Spec, run: Integration, device: torch.device) -> tuple[np.ndarray, Tensor | None, float]:
    """Times of the observations as they were collected, the samples that they are of, and the direction of time."""
    if isinstance(run, SampleIntegration):
        rows, times = place(run.glances, spec.f.shape[0])
        return times, torch.as_tensor(rows, device=device), 1.0
    observer = spec.make_observer()
    if isinstance(observer, SampleObserver):
        return observer.sorted, observer.index(0, len(observer.rows), device), 1.0
    assert isinstance(observer, Observer)
    return np.array(spec.times(run.event_time)), None, observer.sign
