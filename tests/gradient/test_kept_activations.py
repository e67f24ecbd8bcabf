"""Kept activations and postponed weight gradients change the cost of the discrete adjoint, never its value."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from gradient.helpers import normal, times

T = times(0.0, 0.4, 1.0)
ALLOWANCES = (0, 4000, 2**30)  # none, the first few evaluations, all


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 20), nn.Linear(20, 3, bias=False)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(y))) * torch.cos(t)


class Tied(Plain):
    """One layer used twice, and a weight that is also used outside of its layer."""

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        again = self.inner(self.outer(torch.tanh(self.inner(y))))
        return self.outer(torch.tanh(again)) + y * self.inner.weight.mean()


class Frozen(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.inner.requires_grad_(False)


class Gradient(nn.Module):
    """f calls autograd itself: minus the gradient of a potential, for which layers are differentiated twice."""

    def __init__(self) -> None:
        super().__init__()
        self.potential = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 1, bias=False))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            y = y if y.requires_grad else y.detach().requires_grad_()
            return -torch.autograd.grad(self.potential(y).sum(), y, create_graph=True)[0]


class PenalisedInside(Plain):
    """f asks for gradients in its own weights, which must not be postponed."""

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        out = super().forward(t, y)
        with torch.enable_grad():
            inside = self.inner(y.detach()).square().mean()
            slope = torch.autograd.grad(inside, self.inner.weight, create_graph=torch.is_grad_enabled())[0]
        return out + 0.1 * slope.mean() * y


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(2, 2, 3, padding=1)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(self.layer(y))


MODELS: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
    (Plain, (5, 3)),
    (Tied, (5, 3)),
    (Frozen, (5, 3)),
    (Gradient, (5, 3)),
    (PenalisedInside, (5, 3)),
    (Plain, (3,)),
    (Plain, (2, 4, 3)),
    (Convolution, (3, 2, 6)),
]


def gradients(f: nn.Module, y0: Tensor, how: str | qj.Gradient, **more: object) -> tuple[qj.Stats, list[Tensor]]:
    y0 = y0.clone().requires_grad_()
    sol = qj.solve(f, y0, T, gradient=how, rtol=1e-6, atol=1e-8, **more)  # type: ignore[arg-type]
    wanted = [y0, *(p for p in f.parameters() if p.requires_grad)]
    found = torch.autograd.grad(sol.ys.square().sum(), wanted)
    return sol.stats, list(found)


@pytest.mark.parametrize("mode", ["joint", "stacked"])
@pytest.mark.parametrize("activations", ALLOWANCES)
@pytest.mark.parametrize(("model", "shape"), MODELS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_the_gradient_is_that_of_backpropagation(
    model: Callable[[], nn.Module], shape: tuple[int, ...], activations: int, mode: str
) -> None:
    torch.manual_seed(0)
    f, y0 = model().double(), normal(*shape)
    _, wanted = gradients(f, y0, "direct")
    _, found = gradients(f, y0, qj.DiscreteAdjoint(mode=mode, activations=activations))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["joint", "stacked"])
def test_what_is_kept_is_not_evaluated_again(mode: str) -> None:
    torch.manual_seed(0)
    f, y0 = Plain().double(), normal(5, 3)
    repeated = {}
    for activations in ALLOWANCES:
        stats, _ = gradients(f, y0, qj.DiscreteAdjoint(mode=mode, activations=activations))
        repeated[activations] = stats.backward_evaluations
    none, some, everything = (repeated[a] for a in ALLOWANCES)
    assert none == stats.vjp_state
    assert 0 < some < none
    assert everything == (1 if mode == "stacked" else 0)  # the first, which was recorded before the mode was chosen


def test_rejected_steps_are_not_kept() -> None:
    """The field turns off suddenly, so that steps are rejected; those accepted are still differentiated exactly."""
    torch.manual_seed(0)
    net = Plain().double()

    class Sudden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return self.net(t, y) * torch.sigmoid(200 * (0.5 - t))

    f, y0 = Sudden(), normal(5, 3)
    _, wanted = gradients(f, y0, "direct")
    stats, found = gradients(f, y0, qj.DiscreteAdjoint(mode="joint", activations=2**30))
    assert stats.rejected_steps > 0
    assert stats.backward_evaluations == 0
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_weight_gradients_of_many_stages_are_one_product() -> None:
    """Five rows a stage: all stages together stay below one chunk, so each of the two layers has one product."""
    torch.manual_seed(0)
    f, y0 = Plain().double(), normal(5, 3)
    stats, _ = gradients(f, y0, qj.DiscreteAdjoint(mode="stacked"))
    assert stats.vjp_state > 10
    assert stats.vjp_params == 2


@pytest.mark.parametrize("mode", ["joint", "stacked"])
def test_a_retained_graph_can_be_used_twice(mode: str) -> None:
    torch.manual_seed(0)
    f, y0 = Plain().double(), normal(5, 3)
    ys = qj.odeint(f, y0, T, gradient=qj.DiscreteAdjoint(mode=mode))
    loss = ys.square().sum()
    first = torch.autograd.grad(loss, list(f.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(f.parameters()))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_weights_handed_in_for_one_call_are_differentiated() -> None:
    torch.manual_seed(0)
    f, y0 = Plain().double(), normal(5, 3)
    weights = {name: (1.5 * p).detach().requires_grad_() for name, p in f.named_parameters()}
    results = []
    for how in ("direct", qj.DiscreteAdjoint(mode="stacked")):

        class Solve(nn.Module):
            def __init__(self, how: str | qj.Gradient) -> None:
                super().__init__()
                self.f, self.how = f, how

            def forward(self, y: Tensor) -> Tensor:
                out = qj.odeint(self.f, y, T, gradient=self.how)
                assert isinstance(out, Tensor)
                return out

        named = {f"f.{name}": w for name, w in weights.items()}
        ys = torch.func.functional_call(Solve(how), named, (y0,))
        results.append(torch.autograd.grad(ys.square().sum(), list(weights.values())))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_nothing_is_kept_where_saved_tensors_are_hooked() -> None:
    """Hooks are for the graph that they were set around; a solve keeps nothing for them to see."""
    f, y0 = Plain().double(), normal(5, 3).requires_grad_()
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x.shape) or x, lambda x: x):
        sol = qj.solve(f, y0, T, gradient=qj.DiscreteAdjoint(mode="joint"))
    assert len(seen) < 10
    sol.ys.sum().backward()
    assert sol.stats.backward_evaluations == sol.stats.vjp_state > 0


def test_bad_allowance_is_refused() -> None:
    with pytest.raises(ValueError, match="activations are bytes"):
        qj.DiscreteAdjoint(activations=-1)
