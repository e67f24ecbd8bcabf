"""Functions that break what a fast backward pass would like to assume; the gradient is that of direct."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import quadjoint as qj
from gradient.helpers import normal, times
from quadjoint.solver.spec import Spec

T = times(0.0, 0.5, 1.0)
MODES = ("joint", "stacked")
pytestmark = [
    pytest.mark.filterwarnings("ignore::quadjoint.QuadjointWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),  # torch.func.jvp calls deprecated parts of torch
]


def net(dim: int = 3, width: int = 12, seed: int = 0, **more: Any) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Linear(dim, width, **more), nn.Tanh(), nn.Linear(width, dim, **more))
        return layers if more else layers.double()


def gradient(f: Callable[..., Any], params: list[Tensor], y0: Tensor, how: str | qj.Gradient) -> list[Tensor]:
    ys = qj.odeint(f, y0, T, gradient=how, rtol=1e-5, atol=1e-7)
    assert isinstance(ys, Tensor)
    weights = torch.linspace(0.5, 1.5, ys.numel(), dtype=torch.float64).reshape(ys.shape)
    return list(torch.autograd.grad((weights * ys.abs().square()).sum(), params))


def assert_exact(f: Callable[..., Any], params: list[Tensor], y0: Tensor, *hows: str | qj.Gradient) -> None:
    wanted = gradient(f, params, y0, "direct")
    for how in hows or ("auto", "discrete", *(qj.DiscreteAdjoint(mode=m) for m in MODES)):
        for a, b in zip(gradient(f, params, y0, how), wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, msg=lambda text, how=how: f"{how}: {text}")


# Samples that influence each other ------------------------------------------------------------------------------------


class Coupled(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.net, self.how = net(), how

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        if self.how == "later":
            return self.net(y) + t * y.mean(0)
        if self.how == "one row":
            return self.net(y - y[:1])
        if self.how == "one pair":
            return self.net(y) + torch.cat([y[1:2], torch.zeros_like(y[1:])])
        return self.net(y) + y.roll(1, 0)


@pytest.mark.parametrize("samples", [2, 3, 4, 17])
@pytest.mark.parametrize("how", ["later", "one row", "one pair", "neighbours"])
def test_any_coupling_of_samples_is_noticed(how: str, samples: int) -> None:
    f = Coupled(how)
    assert_exact(f, list(f.parameters()), normal(samples, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_coupling_is_noticed_in_low_precision(dtype: torch.dtype) -> None:
    f, y0 = Coupled("one row").to(dtype), normal(4, 3).to(dtype)
    how = {"method": "rk4", "options": {"step_size": 0.25}}
    found = []
    for gradient in ("direct", "gq"):
        ys = qj.odeint(f, y0, T, gradient=gradient, **how)
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(ys.float().square().sum(), f.parameters())]))
    torch.testing.assert_close(found[1], found[0], rtol=0.1, atol=0.05 * float(found[0].abs().max()))


def test_what_is_known_of_one_method_is_not_believed_of_another() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def apart(self, t: Tensor, y: Tensor) -> Tensor:
            return self.net(y)

        def together(self, t: Tensor, y: Tensor) -> Tensor:
            return self.net(y + y.mean(0))

    two = Two()
    for f in (two.apart, two.together, two.apart):
        assert_exact(f, list(two.parameters()), normal(4, 3))


def test_a_graph_that_changes_is_noticed() -> None:
    class OnGraph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.register_buffer("edges", torch.zeros(4, 4, dtype=torch.float64))

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return self.net(y) + self.edges @ y

    f = OnGraph()
    assert_exact(f, list(f.parameters()), normal(4, 3))
    f.edges = normal(4, 4, seed=1)
    assert_exact(f, list(f.parameters()), normal(4, 3))


# Hooks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["auto", "discrete", "gq", "adjoint", *(qj.DiscreteAdjoint(mode=m) for m in MODES)])
def test_hooks_of_parameters_see_the_whole_gradient_once(how: str | qj.Gradient) -> None:
    f = net()
    seen: list[Tensor] = []
    plain = gradient(lambda t, y: f(y), list(f.parameters()), normal(4, 3), how)
    handle = f[0].weight.register_hook(lambda g: seen.append(g.clone()) or 2 * g)
    ys = qj.odeint(lambda t, y: f(y), normal(4, 3), T, gradient=how, rtol=1e-5, atol=1e-7)
    weights = torch.linspace(0.5, 1.5, ys.numel(), dtype=torch.float64).reshape(ys.shape)
    (weights * ys.square()).sum().backward()
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], plain[0], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(f[0].weight.grad, 2 * seen[0])
    handle.remove()


class Method:
    """Holds a module, and is none."""

    def __init__(self, inside: nn.Module) -> None:
        self.inside = inside

    def rate(self, t: Tensor, y: Tensor) -> Tensor:
        return self.inside(y)


def apply(inside: nn.Module, t: Tensor, y: Tensor) -> Tensor:
    return inside(y)


@pytest.mark.parametrize("kind", ["closure", "partial", "method"])
@pytest.mark.parametrize("solve", ["dense", "iterate"])
def test_backward_hooks_of_modules_that_f_holds_are_called(kind: str, solve: str) -> None:
    """A hook that halves what passes it changes all gradients alike, also where points would be stacked."""
    inside = net()
    inside.register_full_backward_hook(lambda module, into, out: tuple(0.5 * g for g in into))
    f = {"closure": lambda t, y: inside(y), "partial": partial(apply, inside), "method": Method(inside).rate}[kind]
    y0 = normal(2, 3).requires_grad_()
    (wanted,) = gradient(f, [y0], y0, "direct")
    (found,) = gradient(f, [y0], y0, qj.GaussLegendre(solve=solve))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_backward_hooks_inside_of_f_are_called() -> None:
    class Hooked(nn.Module):
        def __init__(self, by_module: bool) -> None:
            super().__init__()
            self.net, self.by_module = net(), by_module
            if by_module:
                self.net[0].register_full_backward_hook(
                    lambda m, gin, gout: tuple(None if g is None else 0.5 * g for g in gin)
                )

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            h = self.net[0](y)
            if h.requires_grad and not self.by_module:
                h.register_hook(lambda g: 0.5 * g)
            return self.net[2](torch.tanh(h))

    for by_module in (True, False):
        f = Hooked(by_module)
        y0 = normal(4, 3).requires_grad_()
        assert_exact(f, [y0, *f.parameters()], y0)


# Autograd within f and within its backward pass -----------------------------------------------------------------------


class Inner(torch.autograd.Function):
    """tanh(layer(y)), whose backward pass calls autograd on a layer of its own graph."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, layer: nn.Linear) -> Tensor:
        with torch.enable_grad():
            ctx.y = y.detach().requires_grad_()
            ctx.out = torch.tanh(layer(ctx.y))
        ctx.layer = layer
        return ctx.out.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        torch.autograd.grad(ctx.out, ctx.layer.weight, grads[0], retain_graph=True)
        return torch.autograd.grad(ctx.out, ctx.y, grads[0], retain_graph=True)[0], None


def test_autograd_inside_of_a_backward_pass_gets_its_own_gradients() -> None:
    class WithInner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.layer = net(), nn.Linear(3, 3).double().requires_grad_()

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return self.net(y) + Inner.apply(y, self.layer)

    f = WithInner()
    y0 = normal(4, 3).requires_grad_()
    assert_exact(f, [y0, *f.net.parameters()], y0, *(qj.DiscreteAdjoint(mode=m) for m in ("joint", "stacked")))


def test_transforms_of_torch_func_inside_of_f() -> None:
    energy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1, bias=False)).double()

    def by_grad(t: Tensor, y: Tensor) -> Tensor:
        return -torch.func.vmap(torch.func.grad(lambda x: energy(x).sum()))(y)

    def by_jvp(t: Tensor, y: Tensor) -> Tensor:
        return torch.func.jvp(energy[0], (y,), (torch.ones_like(y),))[1][:, :3] - y

    for f, params in ((by_grad, list(energy.parameters())), (by_jvp, [energy[0].weight])):
        assert_exact(f, params, normal(4, 3))


def test_sparse_matrices_inside_of_f() -> None:
    f, edges = net(), torch.eye(4, dtype=torch.float64).to_sparse()
    assert_exact(lambda t, y: torch.sparse.mm(edges, f(y)), list(f.parameters()), normal(4, 3), "auto", "discrete")


# Linear layers that are not quite -------------------------------------------------------------------------------------


def test_complex_states_and_layers() -> None:
    rate = torch.tensor(0.7 + 0.2j, dtype=torch.complex128, requires_grad=True)
    y0 = torch.complex(normal(4, 3), normal(4, 3, seed=1))
    assert_exact(lambda t, y: rate * y - y.abs().square() * y, [rate], y0)
    f = net(dtype=torch.complex128)
    assert_exact(lambda t, y: f(y), list(f.parameters()), y0)


def test_linear_with_unusual_arguments() -> None:
    weight, vector = (normal(*shape).requires_grad_() for shape in ((3, 3), (3,)))
    bias = normal(4, 3, seed=2).requires_grad_()
    linear = nn.functional.linear
    y0 = normal(4, 3)
    assert_exact(
        lambda t, y: torch.tanh(linear(y, weight, bias)), [weight, bias], y0, qj.DiscreteAdjoint(mode="stacked")
    )
    assert_exact(lambda t, y: linear(y, vector)[:, None] - y, [vector], y0, qj.DiscreteAdjoint(mode="stacked"))


# What is left behind --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_backward_pass_that_failed_can_be_tried_again(mode: str) -> None:
    fail = [False]

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            if fail[0]:
                fail[0] = False
                raise LookupError("once")
            return grads[0]

    class Unreliable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.calls = net(), 0

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            out = self.net(y)
            return Failing.apply(out) if t > 0.3 else out

    f = Unreliable()
    ys = qj.odeint(f, normal(4, 3), T, gradient=qj.DiscreteAdjoint(mode=mode))
    loss, params = ys.square().sum(), list(f.parameters())
    wanted = torch.autograd.grad(loss, params, retain_graph=True)
    fail[0] = True
    with pytest.raises(LookupError):
        torch.autograd.grad(loss, params, retain_graph=True)
    for a, b in zip(torch.autograd.grad(loss, params), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_checkpoint_around_the_solve_finds_the_same_choice() -> None:
    f, y0 = net(), normal(4, 3).requires_grad_()

    def solve(y: Tensor) -> Tensor:
        out = qj.odeint(lambda t, y: f(y), y, T)
        assert isinstance(out, Tensor)
        return out

    wanted = torch.autograd.grad(solve(y0).sum(), [y0, *f.parameters()])
    for _ in range(2):
        found = torch.autograd.grad(checkpoint(solve, y0, use_reentrant=False).sum(), [y0, *f.parameters()])
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", ["auto", "direct", "discrete", "gq", "adjoint"])
def test_a_solve_is_freed_without_the_garbage_collector(how: str) -> None:
    alive: list[weakref.ref[Spec]] = []
    original = Spec.begin

    def begin(self: Spec, *args: Any, **kwargs: Any) -> Any:
        alive.append(weakref.ref(self))
        return original(self, *args, **kwargs)

    f = net()
    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Spec, "begin", begin)
            qj.odeint(lambda t, y: f(y), normal(4, 3), T, gradient=how).sum().backward()
        assert alive and all(reference() is None for reference in alive)
    finally:
        gc.enable()


@pytest.mark.parametrize("method", ["explicit_adams", "implicit_adams", "fixed_adams", "alf"])
def test_auto_backpropagates_through_steps_that_cannot_be_transposed(method: str) -> None:
    f = net()
    options = {} if method == "alf" else {"step_size": 0.1}
    sol = qj.solve(lambda t, y: f(y), normal(4, 3), T, method=method, options=options)
    assert sol.stats.method == "direct"
    sol.ys.sum().backward()
    assert all(p.grad is not None for p in f.parameters())


def test_an_empty_batch_has_gradients() -> None:
    f = net()
    for how in ("auto", "discrete"):
        ys = qj.odeint(lambda t, y: f(y), torch.zeros(0, 3, dtype=torch.float64), T, gradient=how)
        ys.sum().backward()
        assert all(p.grad is None or not p.grad.any() for p in f.parameters())
