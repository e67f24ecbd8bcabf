"""What stands in the table of docs/torch-func.md: for each row a function that tries it with one gradient."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

import quadjoint as qj
from trust.helpers import DTYPE, Field, assert_close, normal, times, weigh

EXACT = ("auto", "direct", "discrete", "reversible")
NAMES = (*EXACT, "gq", "gq-paper", "adjoint", "seminorm")
T = times(0.0, 0.4, 1.0)
Y0 = normal(4, 3)


def settings(gradient: str, *, fixed: bool = False) -> dict[str, Any]:
    """Of a solve that the gradient can differentiate well."""
    if gradient == "reversible":
        options = {"step_size": 0.1} if fixed else {"step_t": [0.4]}  # it steps onto every observation
        return {"method": "alf", "options": options, "rtol": 1e-3, "atol": 1e-3}
    if fixed:
        return {"method": "rk4", "options": {"step_size": 0.05}}
    return {"rtol": 1e-6, "atol": 1e-8}


def within(gradient: str) -> float:
    return 1e-6 if gradient in EXACT else 1e-3


class Model(nn.Module):
    """A solve between a function and a layer."""

    def __init__(self, gradient: Any, *, dtype: torch.dtype = DTYPE, f: nn.Module | None = None, **given: Any) -> None:
        super().__init__()
        self.f, self.gradient, self.settings = Field(dtype=dtype) if f is None else f, gradient, given
        self.last = nn.Linear(3, 1, dtype=dtype)
        nn.init.constant_(self.last.weight, 0.5)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(qj.odeint(self.f, torch.sin(x), T, gradient=self.gradient, **self.settings)[-1])


def gradients(model: nn.Module, x: Tensor = Y0) -> list[Tensor]:
    return list(torch.autograd.grad(model(x).square().mean(), list(model.parameters())))


def reference(gradient: str, **given: Any) -> list[Tensor]:
    """The gradients of plain backpropagation through the same solve."""
    return gradients(Model("direct", **{**settings(gradient), **given}))


def compiled_model(gradient: str) -> None:
    """A step of training, backward pass and all."""
    torch._dynamo.reset()
    model = Model(gradient, **settings(gradient))

    def step(x: Tensor) -> None:
        model(x).square().mean().backward()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, on its graph breaks
        torch.compile(step, backend="eager")(Y0)
    assert_close([p.grad for p in model.parameters()], reference(gradient), within=within(gradient))


def compiled_steps(gradient: str) -> None:
    from quadjoint.solver.methods import compiled

    before, compiled.COMPILE = compiled.COMPILE, {"backend": "eager", "dynamic": False}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module="torch")
            warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
            found = gradients(Model(gradient, compile=True, **settings(gradient)))
    finally:
        compiled.COMPILE = before
    assert_close(found, reference(gradient), within=within(gradient))


def solver(gradient: str, f: Any = None, **given: Any) -> Callable[[Tensor], Tensor]:
    f = Field().requires_grad_(False) if f is None else f
    return lambda y: qj.odeint(f, y, T, gradient=gradient, **given)


def reverse_mode(gradient: str) -> None:
    wanted = jacobian(solver("direct", **settings(gradient)), Y0)
    solve = solver(gradient, **settings(gradient))
    assert_close([jacrev(solve)(Y0)], [wanted], within=1e-9)
    found = grad(lambda y: weigh(solve(y)))(Y0), vjp(solve, Y0)[1](torch.ones_like(solve(Y0)))[0]
    y = Y0.clone().requires_grad_()
    plain = solver("direct", **settings(gradient))(y)
    sums = [torch.autograd.grad(loss, y, retain_graph=True)[0] for loss in (weigh(plain), plain.sum())]
    assert_close(found, sums, within=1e-9)


def forward_mode(gradient: str) -> None:
    wanted = jacobian(solver("direct", **settings(gradient)), Y0)
    solve, v = solver(gradient, **settings(gradient)), normal(4, 3, seed=1)
    along = torch.einsum("kbdce,ce->kbd", wanted, v)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(solve(forward_ad.make_dual(Y0, v))).tangent
    assert dual is not None
    assert_close([jacfwd(solve)(Y0), jvp(solve, (Y0,), (v,))[1], dual], [wanted, along, along], within=1e-9)


def mapped(gradient: str) -> None:
    given = settings(gradient, fixed=True)
    found = vmap(solver(gradient, **given), out_dims=1)(Y0)
    assert_close([found], [solver("direct", **given)(Y0)], within=1e-9)


def functional(gradient: str) -> None:
    model = Model(gradient, **settings(gradient))
    weights = {name: (1.1 * p.detach()).requires_grad_() for name, p in model.named_parameters()}
    found = torch.autograd.grad(functional_call(model, weights, (Y0,)).square().mean(), list(weights.values()))
    other = Model("direct", **settings(gradient))
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.1)
    assert_close(found, gradients(other), within=within(gradient))


def batched(gradient: Any) -> None:
    name = gradient if isinstance(gradient, str) else "auto"
    solve = lambda g: solver(g, **settings(name))  # noqa: E731
    found = jacobian(solve(gradient), Y0, vectorize=True)
    assert_close([found], [jacobian(solve("direct"), Y0)], within=within(name))
    y, seeds = Y0.clone().requires_grad_(), torch.stack([torch.ones(3, 4, 3), torch.zeros(3, 4, 3)]).to(DTYPE)
    rows = torch.autograd.grad(solve(gradient)(y), y, seeds, is_grads_batched=True)[0]
    assert_close([rows[0]], [found.sum((0, 1, 2))], within=within(name))


def twice(gradient: str) -> None:
    def penalty(how: str) -> list[Tensor]:
        f, y = Field(), Y0.clone().requires_grad_()
        ys = solver(how, f, **settings(gradient))(y)
        (g,) = torch.autograd.grad(weigh(ys), y, create_graph=True)
        return list(torch.autograd.grad(g.square().sum(), [y, *f.parameters()]))

    assert_close(penalty(gradient), penalty("direct"), within=within(gradient))


def autocast(gradient: str) -> None:
    given = {**settings(gradient), "rtol": 1e-2, "atol": 1e-2}
    model = Model(gradient, dtype=torch.float32, **given)
    x = Y0.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).float().square().mean()
    found = torch.autograd.grad(loss, list(model.parameters()))
    assert_close(found, gradients(Model("direct", dtype=torch.float32, **given), x), within=5e-2)


def checkpoint_around(gradient: str) -> None:
    for reentrant in (False, True):
        model, x = Model(gradient, **settings(gradient)), Y0.clone().requires_grad_()
        checkpoint(model, x, use_reentrant=reentrant).square().mean().backward()
        assert_close([p.grad for p in model.parameters()], reference(gradient), within=within(gradient))


class Inside(Field):
    """A checkpoint inside of the dynamics."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return checkpoint(super().forward, t, y, use_reentrant=self.reentrant)


def checkpoint_inside(gradient: str, *, reentrant: bool = False) -> None:
    model = Model(gradient, f=Inside(reentrant), **settings(gradient))
    model(Y0).square().mean().backward()
    assert_close([p.grad for p in model.parameters()], reference(gradient), within=within(gradient))


def reentrant_inside(gradient: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")  # while steps are searched
        checkpoint_inside(gradient, reentrant=True)


FEATURES: dict[str, Callable[[str], None]] = {
    "`torch.compile(model)`": compiled_model,
    "`compile=True`": compiled_steps,
    "`torch.func.grad`, `vjp`, `jacrev`": reverse_mode,
    "`torch.func.jvp`, `jacfwd`; `torch.autograd.forward_ad`": forward_mode,
    "`torch.func.vmap`, fixed steps": mapped,
    "`torch.func.functional_call`": functional,
    "`jacobian(vectorize=True)`, `is_grads_batched=True`": batched,
    "`create_graph=True`": twice,
    "`torch.autocast`": autocast,
    "`checkpoint` around a solve": checkpoint_around,
    "`checkpoint` inside of f": checkpoint_inside,
    "`checkpoint(use_reentrant=True)` inside of f": reentrant_inside,
}
