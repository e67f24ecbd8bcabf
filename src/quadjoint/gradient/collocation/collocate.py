"""The sweep over the panels of the trajectory, from the last to the first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from quadjoint.errors import SolveError
from quadjoint.gradient.base import Task
from quadjoint.gradient.collocation.accuracy import ErrorEstimate
from quadjoint.gradient.collocation.dense import PanelMaps, agree, jacobians
from quadjoint.gradient.collocation.iterate import Iteration, NotSolvedError, PanelSystem
from quadjoint.gradient.collocation.panels import Panel, states_of
from quadjoint.gradient.collocation.rule import CollocationRule
from quadjoint.gradient.cotangents import Cotangents
from quadjoint.gradient.products import Products

DEEPEST = 12  # halvings of a panel


class Sweep:
    """The adjoint from panel to panel, and the sums of the parameters' gradients.

    ``a`` is the adjoint at the start of the panel that was last swept, flat.
    """

    def __init__(
        self, task: Task, products: Products, cotangents: Cotangents, rule: CollocationRule, tolerance: float
    ) -> None:
        self.task, self.products, self.cotangents, self.rule = task, products, cotangents, rule
        grads = cotangents.grads
        self.a = grads.new_zeros(task.f.shape.numel())
        self.iteration = Iteration(tolerance)
        self.estimate = ErrorEstimate(rule)
        self.later: tuple[Panel, Tensor] | None = None  # the panel swept before, and its rates

    # Observations -----------------------------------------------------------------------------------------------------

    def observation_terms(self, panel: Panel) -> Tensor:
        """What the observations in a panel add: h b_j(s_k) g_k to kappa_j, and g_k to a0; shape (q + 1, numbers)."""
        first, last = panel.observations
        out = self.a.new_zeros(self.rule.q + 1, len(self.a))
        if last > first:
            s = np.clip((self.cotangents.times[first:last] - panel.t0) / panel.h, 0.0, 1.0)
            weights = np.hstack([self.rule.integrals(s) * panel.h, np.ones((last - first, 1))])
            self.cotangents.spread(first, last, weights, out)
        return out

    def _constant(self, values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=self.a.dtype, device=self.a.device)

    def record(self, panels: Sequence[Panel]) -> tuple[Tensor, Tensor]:
        """f at the nodes of panels, recorded: the stack of points and what came out, (nodes, *state)."""
        c, shape = self.rule.c, self.task.f.shape
        ys = states_of(panels, c).reshape(len(panels) * len(c), *shape).requires_grad_()
        times = np.concatenate([panel.times(c) for panel in panels]).tolist()
        self.task.stats.quadrature_nodes += len(times)
        return ys, self.products.record_stack(times, ys)

    def product(self, out: Tensor, ys: Tensor, kappa: Tensor) -> Tensor:
        """mu = J^T kappa of every point."""
        if not out.requires_grad:
            return torch.zeros_like(kappa)
        self.task.stats.vjp_state += len(ys)
        (mu,) = torch.autograd.grad(out, ys, kappa.reshape(out.shape), retain_graph=True, allow_unused=True)
        return torch.zeros_like(kappa) if mu is None else mu.reshape(kappa.shape)

    def joint(self, out: Tensor, ys: Tensor, kappa: Tensor) -> tuple[Tensor, Sequence[Tensor | None]]:
        """mu, and the parameters' gradient."""
        targets = self.products.targets
        if not out.requires_grad:
            return torch.zeros_like(kappa), [None] * len(targets)
        stats = self.task.stats
        stats.vjp_state += len(ys)
        stats.vjp_params += bool(targets)
        mu, *found = torch.autograd.grad(
            out, (ys, *targets), kappa.reshape(out.shape), retain_graph=True, allow_unused=True
        )
        return torch.zeros_like(kappa) if mu is None else mu.reshape(kappa.shape), found

    # One panel, by iteration ------------------------------------------------------------------------------------------

    def iterate(self, panels: Iterable[Panel]) -> None:
        """Sweep panels one by one."""
        for panel in panels:
            self._iterate(panel, DEEPEST)

    def _iterate(self, panel: Panel, depth: int) -> None:
        q, h = self.rule.q, panel.h
        ys, out = self.record([panel])
        observed = self.observation_terms(panel)
        right = torch.addr(observed[:q], self._constant(self.rule.b * h), self.a)
        coupling = self._constant(self.rule.a.T * h)
        try:
            product, joint = partial(self.product, out, ys), partial(self.joint, out, ys)
            system = PanelSystem(right, coupling, abs(h), product, joint)
            mu, gradients = self.iteration.solve(system, self._guess(panel))
        except NotSolvedError:
            if depth == 0:
                raise SolveError(
                    f"The adjoint equations could not be solved at t = {panel.t0:.6g}, in a panel of length "
                    f"{abs(h):.3g}: the dynamics are too stiff there for products alone. Use a smaller tolerance, "
                    "gradient='discrete', or, for a small state, GaussLegendre(solve='dense')."
                ) from None
            for half in panel.halves(self.cotangents.times):
                self._iterate(half, depth - 1)
            return
        self.products.add(gradients)
        before, self.a = self.a, self.a + observed[q] + mu.sum(0)
        self.estimate.add(mu[None], before[None], self.a[None])
        self.later = panel, mu

    def _guess(self, panel: Panel) -> Tensor | None:
        """mu as it would be if the rates of the later panel went on; observations break them."""
        if self.later is None:
            return None
        later, mu = self.later
        if later.observations[0] != later.observations[1] or panel.observations[0] != panel.observations[1]:
            return None
        theta = (panel.times(self.rule.c) - later.t0) / later.h
        weights = self.rule.basis(theta) / self.rule.b * (self.rule.b[:, None] * panel.h / later.h)
        return self._constant(weights) @ mu

    # Many panels at once ----------------------------------------------------------------------------------------------

    def solve_dense(self, panels: Iterator[Panel], *, size: int) -> bool:
        """Sweep panels, ``size`` at a time, as small systems; False if that was wrong, and products took over."""
        for chunk in _chunks(panels, size):
            if not self._solve_dense(chunk):
                self.iterate(itertools.chain(chunk, panels))
                return False
        return True

    def _solve_dense(self, panels: list[Panel]) -> bool:
        q, count = self.rule.q, len(panels)
        shape = self.task.f.shape
        d = shape[-1] if shape else 1
        ys, out = self.record(panels)
        points = (count, q, -1, d)
        jacobian = jacobians(lambda unit: self.product(out, ys, unit), ys.view(*points)).reshape(*points, d)
        observed = torch.stack([self.observation_terms(panel) for panel in panels]).reshape(count, q + 1, -1, d)
        lengths = np.array([panel.h for panel in panels])
        try:
            maps = PanelMaps(self.rule, lengths, jacobian, observed[:, :q])
        except RuntimeError:  # of LAPACK, for a singular system
            return False
        ends, a = maps.chain(self.a.view(-1, d), observed[:, q])
        kappa, mu = maps.kappas(ends)
        true, gradients = self.joint(out, ys, kappa)
        if not bool(agree(mu, true, kappa, jacobian)):
            return False
        self.products.add(gradients)
        self.estimate.add(mu.reshape(count, q, -1), ends, torch.cat([ends[1:], a[None]]))
        self.a = a.reshape(-1)
        return True


def _chunks(panels: Iterator[Panel], size: int) -> Iterator[list[Panel]]:
    while chunk := list(itertools.islice(panels, size)):
        yield chunk
