"""Other libraries on the same cases. Each is imported when it is first used, so that any of them may be missing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.methods import Method, NotApplicable, Runner
from benchmarks.problems import Case
from quadjoint.experiments import authors


@contextmanager
def counted(f: nn.Module) -> Iterator[list[int]]:
    """Counts the evaluations of a module in ``[n]``."""
    count = [0]

    def add(*_: Any) -> None:
        count[0] += 1

    handle = f.register_forward_pre_hook(add)
    try:
        yield count
    finally:
        handle.remove()


class TorchPeer(Runner):
    """A library whose solve is a function of torch tensors: ``solve()`` returns the states at the times."""

    def __init__(self, case: Case, solve: Callable[[], Tensor]) -> None:
        self.case, self.solve = case, solve

    def run(self) -> Any:
        return torch.autograd.grad(self.case.value(self.solve()), self.case.wrt)

    def first(self) -> tuple[list[Tensor], dict[str, Any]]:
        with counted(self.case.f) as count:
            value = self.case.value(self.solve())
            forward = count[0]
            gradients = torch.autograd.grad(value, self.case.wrt)
        return list(gradients), {"evaluations": {"forward": forward, "backward": count[0] - forward}}


def _shared_times(case: Case) -> None:
    if case.t.ndim != 1:
        raise NotApplicable("one row of times for the whole batch only")


def torchdiffeq_direct(case: Case, tolerance: float) -> Runner:
    library = importlib.import_module("torchdiffeq")
    _shared_times(case)
    tolerances = {"rtol": tolerance, "atol": tolerance}
    return TorchPeer(case, lambda: library.odeint(case.f, case.y0, case.t, method="dopri5", **tolerances))


def torchdiffeq_adjoint(norm: str | None) -> Callable[[Case, float], Runner]:
    def make(case: Case, tolerance: float) -> Runner:
        library = importlib.import_module("torchdiffeq")
        _shared_times(case)
        options = {"rtol": tolerance, "atol": tolerance, "method": "dopri5"}
        backward = {} if norm is None else {"norm": norm}

        def solve() -> Tensor:
            adjoint_options = dict(backward) if backward else None
            return library.odeint_adjoint(case.f, case.y0, case.t, adjoint_options=adjoint_options, **options)

        return TorchPeer(case, solve)

    return make


def torchode_direct(case: Case, tolerance: float) -> Runner:
    """torchode controls the step of every sample by itself; states are (B, n), and f gets a time for each sample."""
    library = importlib.import_module("torchode")
    shape, dtype = case.y0.shape, case.y0.dtype
    t = case.t.to(dtype).expand(shape[0], -1).contiguous()

    def f(t: Tensor, y: Tensor) -> Tensor:
        return case.f(t, y.reshape(shape)).reshape(y.shape)

    term = library.ODETerm(f, with_stats=False)
    control = library.IntegralController(atol=tolerance, rtol=tolerance, term=term)
    method = library.AutoDiffAdjoint(library.Dopri5(term=term), control, backprop_through_step_size_control=False)

    def solve() -> Tensor:
        problem = library.InitialValueProblem(case.y0.reshape(shape[0], -1), t_eval=t)
        ys: Tensor = method.solve(problem, term).ys  # (B, K, n)
        return ys.transpose(0, 1).reshape(t.shape[1], *shape)

    return TorchPeer(case, solve)


def paper_code(method: str) -> Callable[[Case, float], Runner]:
    """The authors' own code, github.com/a-norcliffe/torch_gq_adjoint: from --paper-code, or from the Python path."""

    def make(case: Case, tolerance: float) -> Runner:
        authors.load()
        _shared_times(case)
        return TorchPeer(case, lambda: authors.solve(case.f, case.y0, case.t, method=method, tolerance=tolerance)[0])

    return make


class Diffrax(Runner):
    """Compiled by jax; the weights are already on its side when the clock starts."""

    torch_memory = False

    def __init__(self, case: Case, tolerance: float, adjoint: str) -> None:
        diffrax, jax = importlib.import_module("diffrax"), importlib.import_module("jax")
        _shared_times(case)
        from benchmarks.jax_models import dynamics, to_jax

        field, weights = dynamics(case)
        ts, constants = to_jax(case.t), {k: to_jax(v) for k, v in case.constants.items()}
        control = diffrax.PIDController(rtol=tolerance, atol=tolerance)
        term, how = diffrax.ODETerm(field), getattr(diffrax, adjoint)()

        def loss(weights: list[Any], y0: Any) -> Any:
            solution = diffrax.diffeqsolve(
                term,
                diffrax.Dopri5(),
                ts[0],
                ts[-1],
                None,
                y0,
                args=weights,
                saveat=diffrax.SaveAt(ts=ts),
                stepsize_controller=control,
                adjoint=how,
            )
            return case.loss(solution.ys, constants, jax.numpy), solution.stats

        self.state_too = case.y0.requires_grad
        wanted = (0, 1) if self.state_too else 0
        self.gradient = jax.jit(jax.value_and_grad(loss, argnums=wanted, has_aux=True))
        self.arguments, self.wait = (weights, to_jax(case.y0)), jax.block_until_ready

    def run(self) -> Any:
        return self.wait(self.gradient(*self.arguments))

    def first(self) -> tuple[list[Tensor], dict[str, Any]]:
        (_, stats), found = self.run()
        arrays = [*found[0], found[1]] if self.state_too else list(found)
        steps = {"accepted": int(stats["num_accepted_steps"]), "rejected": int(stats["num_rejected_steps"])}
        return [torch.from_numpy(np.array(array)) for array in arrays], {"steps": steps}


class Torchsde(TorchPeer):
    """The SDE itself by the reversible Heun method, step 0.01: another discretisation of the same model."""

    def __init__(self, case: Case, adjoint: bool) -> None:
        if case.sde is None:
            raise NotApplicable("not an SDE")
        importlib.import_module("torchsde")
        from quadjoint.sde import sdeint

        t = case.t.to(case.y0.dtype)
        super().__init__(case, lambda: sdeint(case.sde, case.y0, t, dt=0.01, adjoint=adjoint, seed=1))

    def first(self) -> tuple[list[Tensor], dict[str, Any]]:
        return list(self.run()), {"error": None, "note": "solves the SDE along another path: no common reference"}


def peers() -> list[Method]:
    return [
        Method("torchdiffeq:direct", torchdiffeq_direct),
        Method("torchdiffeq:adjoint", torchdiffeq_adjoint(None)),
        Method("torchdiffeq:seminorm", torchdiffeq_adjoint("seminorm")),
        Method("torchode:direct", torchode_direct),
        *(Method(name, paper_code(name)) for name in authors.METHODS),
        Method("diffrax:checkpointed", lambda c, tol: Diffrax(c, tol, "RecursiveCheckpointAdjoint"), compiled=True),
        Method("diffrax:backsolve", lambda c, tol: Diffrax(c, tol, "BacksolveAdjoint"), compiled=True),
        Method("torchsde:direct", lambda c, tol: Torchsde(c, adjoint=False)),
        Method("torchsde:adjoint", lambda c, tol: Torchsde(c, adjoint=True)),
    ]
