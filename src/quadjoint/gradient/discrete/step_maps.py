"""Transposed implicit steps as small linear maps, many steps at once.

With lambda_i = dL/dk_i and mu_i = J_i^T lambda_i, where J_i = df/dy at stage i, a step turns the adjoint a1 at its end,
the adjoint c1 of its last stage (as the first stage of the next step), and gradients g_k of states inside into

    lambda_i = h b_i a1 + h sum_k b_i(s_k) g_k + [i is last] c1 + h sum_j a_ji mu_j,
    a0 = a1 + sum_k g_k + sum_i mu_i,   c0 = lambda_0.

The sums are over the stages that the step has solved for; its first one, if it was the last of the step before, leaves
c0 to that. The equations of samples that do not influence each other are solved for unit vectors, all steps and samples
in one batch; the adjoints then follow from a chain of tiny products.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quadjoint.solver.methods.tableau import ButcherTableau


class StepMaps:
    """The maps (a1, c1) -> lambda and (a1, c1) -> (a0, c0) of steps p = 0 .. P-1, of every sample."""

    def __init__(self, tableau: ButcherTableau, lengths: Tensor, jacobian: Tensor, observed: Tensor) -> None:
        """Of stages ``first`` to N - 1: ``jacobian`` of shape (P, N - first, B, d, d).

        ``observed`` of shape (P, N + 1, B, d) has what the gradients inside add to every lambda, and at last to a0;
        ``lengths``, (P, 1, 1, 1) or (P, B, 1, 1) if every sample has its own, are the step sizes. Samples with a
        length of zero rest: c1 is then the adjoint of their first stage.
        """
        p, own, b, d, _ = jacobian.shape
        n = observed.shape[1] - 1
        self.first, self.jacobian, self.d = n - own, jacobian, d
        weights = np.append(tableau.b, np.zeros(tableau.extra_stages))[:n]
        self.coupled = tableau.all_stages[:n, :n] != 0.0
        self.a = torch.as_tensor(np.array(tableau.all_stages[:n, :n])).to(jacobian)
        eye = torch.eye(d, 2 * d + 1, dtype=jacobian.dtype, device=jacobian.device)  # columns: a1, c1, one
        right = eye * (lengths[:, None] * torch.as_tensor(weights).to(jacobian).reshape(1, n, 1, 1, 1))
        right = right.expand(p, n, b, d, 2 * d + 1).clone()
        right[..., -1] += observed[:, :n]
        moved = lengths != 0.0
        right[:, tableau.stages - 1] += eye.roll(d, dims=1) * moved
        right[:, 0] += eye.roll(d, dims=1) * ~moved
        last = tableau.stages
        blocks = [*tableau.blocks, *((i, i + 1) for i in range(last, n))]
        self.lam = right.clone()
        self.mu = torch.zeros_like(right)
        for start, end in reversed(blocks):
            if start >= self.first:
                self._solve(start, end, right, lengths)
        whole = torch.eye(2 * d, 2 * d + 1, dtype=jacobian.dtype, device=jacobian.device)
        self.step = whole.expand(p, b, 2 * d, 2 * d + 1).clone()
        self.step[..., :d, :] += self.mu[:, self.first :].sum(1)
        self.step[..., :d, -1] += observed[:, n]
        self.step[..., d:, :] = self._gathered(0, slice(self.first, n), right, lengths) if self.first else 0.0

    def _gathered(self, i: int, later: slice, right: Tensor, lengths: Tensor) -> Tensor:
        """lambda_i but for what stages outside of ``later`` add."""
        return right[:, i] + torch.einsum("j,pjbkm->pbkm", self.a[later, i], self.mu[:, later]) * lengths

    def _solve(self, start: int, end: int, right: Tensor, lengths: Tensor) -> None:
        """Stages ``start`` to ``end``, which depend on each other, with mu of the later ones known."""
        p, n, b, d, m = right.shape
        later, q = slice(end, n), end - start
        given = torch.stack([self._gathered(i, later, right, lengths) for i in range(start, end)], dim=2)
        jacobian = self.jacobian[:, start - self.first : end - self.first]
        a = self.a[start:end, start:end]
        if self.coupled[start:end, start:end].any():
            # lambda_i - h sum_j a_ji J_j^T lambda_j; unknowns (i, l) and (j, k) of J_j[k, l].
            blocks = torch.einsum("ji,pjbkl->pbiljk", a, jacobian).reshape(p, b, q * d, q * d) * lengths
            matrix = torch.eye(q * d, dtype=a.dtype, device=a.device) - blocks
            given = torch.linalg.solve(matrix, given.reshape(p, b, q * d, m)).reshape(p, b, q, d, m)
        self.lam[:, start:end] = given.transpose(1, 2)
        self.mu[:, start:end] = torch.matmul(jacobian.mT, self.lam[:, start:end])

    def chain(self, a: Tensor, carried: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(a1, c1, 1) of every step, shape (P, B, 2 d + 1), and a0 and c0 of the last in the list."""
        state = torch.cat([a, carried], dim=-1)
        one = torch.ones_like(state[..., :1])
        ends = []
        for step in self.step.unbind():
            ends.append(torch.cat([state, one], dim=-1))
            state = torch.bmm(step, ends[-1].unsqueeze(-1)).squeeze(-1)
        return torch.stack(ends), state[..., : self.d], state[..., self.d :]

    def stages(self, ends: Tensor) -> tuple[Tensor, Tensor]:
        """lambda and mu of the own stages, shape (P, N - first, B, d)."""
        lam, mu = (torch.einsum("pibkm,pbm->pibk", x[:, self.first :], ends) for x in (self.lam, self.mu))
        return lam, mu

    def agree(self, mu: Tensor, true: Tensor, ends: Tensor) -> Tensor:
        """Whether mu are the true products, up to the rounding of what they are sums of."""
        eps = torch.finfo(mu.dtype).eps
        sums = torch.einsum("pibkm,pbm->pibk", self.lam[:, self.first :].abs(), ends.abs()).amax(-1)
        terms = sums * self.jacobian.abs().sum(-2).amax(-1)
        size = torch.maximum(mu.abs(), true.abs()).amax(-1)
        return ((mu - true).abs().amax(-1) <= max(1e-9, 1e3 * eps) * size + 1e2 * eps * terms).all()
