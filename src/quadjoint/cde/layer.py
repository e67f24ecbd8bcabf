"""A neural CDE as a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quadjoint.cde.solve import Controlled, solver_options
from quadjoint.cde.splines import align_times
from quadjoint.ode import odeint, solve
from quadjoint.solution import Solution
from quadjoint.solver.spec import Method
from quadjoint.solver.times import check_times


class MatrixMLP(nn.Module):
    """The field of a CDE: ``f(t, z) = tanh(MLP(z))``, a matrix (hidden, channels) for every state of size hidden.

    The tanh bounds how fast a state can move, without which long paths make states explode (Kidger et al. 2020).

    >>> MatrixMLP(hidden=4, channels=3, width=8)(torch.tensor(0.0), torch.zeros(7, 4)).shape
    torch.Size([7, 4, 3])
    """

    def __init__(self, hidden: int, channels: int, *, width: int, depth: int = 1) -> None:
        super().__init__()
        from quadjoint.nn import MLP

        self.hidden, self.channels = hidden, channels
        self.net = MLP(hidden, *[width] * depth, hidden * channels)

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return torch.tanh(self.net(z)).reshape(*z.shape[:-1], self.hidden, self.channels)


class NeuralCDE(nn.Module):
    """dz = f(t, z) dX from z = initial(X(t0)): ``forward`` maps a path through data to the state at its end.

    Args:
        channels: of the path; `quadjoint.cde.interpolate` adds that of time, and if asked those of the counts.
        hidden: the size of the state.
        width, depth: of the network in the field, a `MatrixMLP`.
        field: another one: (t, z) to (..., hidden, channels).
        initial: the state at the start from the value of the path there; by default a linear layer.
        method, rtol, atol, gradient, options, compile, params: as `quadjoint.odeint` has them.

    A batch may have times of each sample's own: every state is then that at the end of its own path.

    >>> from quadjoint.cde import interpolate
    >>> model = torch.nn.Sequential(NeuralCDE(channels=4, hidden=8, width=16), torch.nn.Linear(8, 2))
    >>> model(interpolate(torch.rand(5, 10, 3))).shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        channels: int,
        hidden: int,
        *,
        width: int = 32,
        depth: int = 1,
        field: Callable[..., Tensor] | None = None,
        initial: Callable[[Tensor], Tensor] | None = None,
        method: Method = "dopri5",
        rtol: Any = 1e-3,
        atol: Any = 1e-6,
        gradient: Any = "auto",
        options: Mapping[str, Any] | None = None,
        compile: bool = False,
        params: Sequence[Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.channels, self.hidden = channels, hidden
        self.field = MatrixMLP(hidden, channels, width=width, depth=depth) if field is None else field
        self.initial = nn.Linear(channels, hidden) if initial is None else initial
        self.method, self.rtol, self.atol, self.gradient = method, rtol, atol, gradient
        self.options = dict(options) if options else None
        self.compiled = compile
        self.further = None if params is None else tuple(params)

    def forward(self, X: Any) -> Tensor:
        """The states at the end of the path, shape (..., hidden)."""
        return self.trajectory(X, X.interval)[..., -1, :]

    def trajectory(self, X: Any, t: Tensor) -> Tensor:
        """The states at times t, (K,) or (B, K), from the first of them on: shape (..., K, hidden)."""
        check_times(t)
        X, t = align_times(X, t)
        ys = odeint(Controlled(X, self.field), self.start(X, t), t, **self.settings(X))
        return ys.movedim(0, -2)

    def solve(self, X: Any, t: Tensor | None = None) -> Solution:
        """The whole solution with its statistics; states are stacked along a first dimension of times."""
        t = X.interval if t is None else t
        check_times(t)
        X, t = align_times(X, t)
        return solve(Controlled(X, self.field), self.start(X, t), t, **self.settings(X))

    def start(self, X: Any, t: Tensor) -> Tensor:
        """The state at the first time."""
        if t.ndim == 2:
            return self.initial(X.evaluate(t[:, :1]).squeeze(-2))
        return self.initial(X.evaluate(t[0]))

    def settings(self, X: Any) -> dict[str, Any]:
        """What the solver is given besides the problem."""
        return {
            "method": self.method,
            "rtol": self.rtol,
            "atol": self.atol,
            "gradient": self.gradient,
            "options": solver_options(X, self.method, self.options, rtol=self.rtol),
            "compile": self.compiled,
            "params": self.further,
        }

    def extra_repr(self) -> str:
        return f"channels={self.channels}, hidden={self.hidden}, method={self.method!r}, gradient={self.gradient!r}"
