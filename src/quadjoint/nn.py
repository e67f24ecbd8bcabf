"""Layers and models that users and experiments share.

A dynamics function is any callable ``f(t, y)``; the classes here are such functions (`TimeMLP`,
`SecondOrder`) and the layers around a solve (`NeuralODE`, `Augment`).
All keep the state's shape, dtype and device, and all can be stacked by ``torch.func.vmap``.

>>> import torch
>>> model = torch.nn.Sequential(Augment(3), NeuralODE(TimeMLP(5, width=16)), torch.nn.Linear(5, 2))
>>> model(torch.zeros(7, 2)).shape
torch.Size([7, 2])
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quadjoint.cde.layer import MatrixMLP, NeuralCDE
from quadjoint.ode import odeint, solve
from quadjoint.solution import Solution
from quadjoint.solver.spec import Method
from quadjoint.solver.structure import map_leaves

__all__ = ["MLP", "Augment", "MatrixMLP", "NeuralCDE", "NeuralODE", "SecondOrder", "TimeMLP"]


class MLP(nn.Sequential):
    """Linear layers with an activation (softplus by default) between them.

    Softplus is smooth, which is what a high-order solver needs to take large steps.

    >>> MLP(3, 8, 8, 1)(torch.zeros(2, 3)).shape
    torch.Size([2, 1])
    """

    def __init__(self, *sizes: int, activation: type[nn.Module] = nn.Softplus) -> None:
        if len(sizes) < 2:
            raise ValueError(f"an MLP needs at least an input and an output size, got {sizes}")
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out), activation()]
        super().__init__(*layers[:-1])


class TimeMLP(nn.Module):
    """Dynamics ``f(t, y) = MLP([y, t])`` on the last dimension of y.

    ``time=False`` leaves t out (autonomous dynamics), so that one class serves both cases. t may be
    a number, a 0-d tensor, or one time per sample: of shape ``y.shape[:-1]``, or with a 1 after it.

    >>> f = TimeMLP(2, width=8)
    >>> f(torch.tensor(0.5), torch.zeros(4, 2)).shape
    torch.Size([4, 2])
    >>> f(torch.linspace(0, 1, 4), torch.zeros(4, 2)).equal(f(torch.linspace(0, 1, 4)[:, None], torch.zeros(4, 2)))
    True
    """

    def __init__(
        self,
        dim: int,
        width: int,
        *,
        depth: int = 2,
        out: int | None = None,
        time: bool = True,
        activation: type[nn.Module] = nn.Softplus,
    ) -> None:
        super().__init__()
        self.time = time
        out = dim if out is None else out
        self.net = MLP(dim + int(time), *[width] * depth, out, activation=activation)

    def forward(self, t: Tensor | float, y: Tensor) -> Tensor:
        if not self.time:
            return self.net(y)
        t = torch.as_tensor(t, dtype=y.dtype, device=y.device)
        if 0 < t.ndim < y.ndim:
            t = t.unsqueeze(-1)
        return self.net(torch.cat([y, t.expand(*y.shape[:-1], 1)], dim=-1))


class SecondOrder(nn.Module):
    """Dynamics of ``x'' = a(t, [x, v])`` on the state ``y = [x, v]`` (Norcliffe et al. 2020).

    The velocity is the second half of the last dimension, so only the acceleration is learnt.

    >>> oscillator = SecondOrder(lambda t, y: -y[..., :1])
    >>> oscillator(torch.tensor(0.0), torch.tensor([1.0, 2.0]))
    tensor([ 2., -1.])
    """

    def __init__(self, acceleration: Any) -> None:
        super().__init__()
        self.acceleration = acceleration

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        dim = y.shape[-1] // 2
        if y.shape[-1] % 2:
            raise ValueError(f"SecondOrder needs a state [x, v] of even size in its last dimension; got {y.shape[-1]}.")
        return torch.cat([y[..., dim:], self.acceleration(t, y)], dim=-1)


class Augment(nn.Module):
    """Append zeros to the last dimension (Dupont et al. 2019): flows of R^(d+n) can separate what
    flows of R^d cannot.

    >>> Augment(2)(torch.ones(1, 1))
    tensor([[1., 0., 0.]])
    """

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(x, (0, self.dims))

    def extra_repr(self) -> str:
        return f"dims={self.dims}"


class NeuralODE(nn.Module):
    """A solve of ``dy/dt = f(t, y)`` as a layer: ``forward`` maps y(t0) to y(t1).

    `trajectory` gives the states at chosen times, `solve` the whole `Solution` with its statistics.
    The state may be a tensor, or tensors in tuples, named tuples, lists or dicts; the result has its structure.
    Nothing of a solve stays on the module, so any number of forwards may be alive at once.

    >>> decay = NeuralODE(lambda t, y: -y, rtol=1e-6, atol=1e-6)
    >>> decay(torch.ones(1)).allclose(torch.tensor([-1.0]).exp())
    True
    >>> decay.trajectory(torch.ones(3, 1), torch.linspace(0, 1, 5)).shape
    torch.Size([5, 3, 1])
    """

    def __init__(
        self,
        f: Any,
        *,
        span: tuple[float, float] = (0.0, 1.0),
        method: Method = "dopri5",
        rtol: Any = 1e-3,
        atol: Any = 1e-6,
        gradient: Any = "auto",
        options: Mapping[str, Any] | None = None,
        independent: bool = False,
        compile: bool = False,
        params: Sequence[Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.f = f
        self.span = span
        self.method = method
        self.rtol = rtol
        self.atol = atol
        self.gradient = gradient
        self.options = dict(options) if options else None
        self.independent = independent
        self.compiled = compile
        self.further = None if params is None else tuple(params)

    def forward(self, y: Any) -> Any:
        """The state at the end of ``span``, like ``y``."""
        return map_leaves(lambda part: part[-1], self.trajectory(y, self.times()))

    def trajectory(self, y: Any, t: Tensor) -> Any:
        """The states at times t, (K,) or (B, K): of shape ``(K, *y.shape)``, for each tensor of y."""
        return odeint(self.f, y, t, **self.settings())

    def solve(self, y: Any, t: Tensor | None = None) -> Solution:
        """The whole solution from y at ``t[0]``, kept for dense output; without t, over ``span``."""
        return solve(self.f, y, self.times() if t is None else t, **self.settings())

    def times(self) -> Tensor:
        """The two ends of ``span``."""
        return torch.tensor(self.span, dtype=torch.float64)

    def settings(self) -> dict[str, Any]:
        """What the solver is given besides the problem."""
        names = ("method", "rtol", "atol", "gradient", "options", "independent")
        return {**{name: getattr(self, name) for name in names}, "compile": self.compiled, "params": self.further}

    def extra_repr(self) -> str:
        return f"span={self.span}, method={self.method!r}, rtol={self.rtol}, gradient={self.gradient!r}"
