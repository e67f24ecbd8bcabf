"""Several processes, several threads, transforms of torch.func, devices."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import quadjoint as qj
from reliability.faults import GRADIENTS, initial, method_of
from reliability.hostile import TIMES, Benign


class Model(nn.Module):
    """A solve as a layer between two others."""

    def __init__(self, gradient: str) -> None:
        super().__init__()
        self.ode, self.gradient = Benign(), gradient
        self.last = nn.Linear(3, 1, dtype=torch.float64)
        nn.init.constant_(self.last.weight, 0.5)
        nn.init.zeros_(self.last.bias)

    def forward(self, y: Tensor) -> Tensor:
        # Fixed steps: adaptive ones would depend on which samples share a batch.
        options = {"step_size": 0.1}
        method = "alf" if self.gradient == "reversible" else "rk4"
        return self.last(qj.odeint(self.ode, y, TIMES, method=method, gradient=self.gradient, options=options)[-1])


def _worker(rank: int, rendezvous: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    results: dict[str, list[Tensor]] = {}
    for gradient in GRADIENTS:
        model = DistributedDataParallel(Model(gradient))
        part = initial()[rank::2]
        model(part).pow(2).mean().backward()
        results[gradient] = [p.grad for p in model.parameters() if p.grad is not None]
    if rank == 0:
        torch.save(results, out)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed package")
def test_two_processes_find_the_gradients_of_one(tmp_path: Path) -> None:
    mp.spawn(_worker, (str(tmp_path / "rendezvous"), str(tmp_path / "out.pt")), nprocs=2)
    results = torch.load(tmp_path / "out.pt", weights_only=True)
    for gradient in GRADIENTS:
        model = Model(gradient)
        model(initial()).pow(2).mean().backward()
        for found, p in zip(results[gradient], model.parameters(), strict=True):
            torch.testing.assert_close(found, p.grad, rtol=1e-9, atol=1e-12, msg=lambda m, g=gradient: f"{g}: {m}")


class Trajectories(Dataset):
    """Solves in the workers that load data."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            return qj.odeint(Benign(), initial()[index], TIMES, rtol=1e-8)


def test_data_loader_workers_solve() -> None:
    loader = DataLoader(Trajectories(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    loaded = torch.cat(list(loader))
    assert torch.equal(loaded, torch.stack([Trajectories()[i] for i in range(4)]))


def _gradient(gradient: str, f: Benign, y0: Tensor) -> list[Tensor]:
    y0 = y0.clone().requires_grad_()
    ys = qj.odeint(f, y0, TIMES, method=method_of(gradient), gradient=gradient)
    return list(torch.autograd.grad((ys**2).sum(), [y0, *f.parameters()]))


@pytest.mark.parametrize("shared", [False, True], ids=["own function", "shared function"])
def test_threads_do_not_disturb_each_other(shared: bool) -> None:
    common = Benign()
    jobs = [(g, common if shared else Benign(), initial() * (1 + 0.1 * i)) for i, g in enumerate(GRADIENTS)]
    expected = [_gradient(g, Benign(), y0) for g, _, y0 in jobs]
    found: list[list[list[Tensor]]] = [[] for _ in jobs]
    failures: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for _ in range(3):
                found[i].append(_gradient(*jobs[i]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for (gradient, _, _), results, right in zip(jobs, found, expected, strict=True):
        for result in results:
            for a, b in zip(result, right, strict=True):
                # A shared function may start with the step size that another thread has found.
                torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3, msg=lambda m, g=gradient: f"{g}: {m}")


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_functional_call_differentiates_in_the_given_parameters(gradient: str) -> None:
    model, other = Model(gradient), Model(gradient)
    with torch.no_grad():
        other.ode.W.mul_(0.7)
    given = {name: p.detach().clone().requires_grad_() for name, p in other.named_parameters()}
    found = torch.autograd.grad(functional_call(model, given, (initial(),)).sum(), list(given.values()))
    expected = torch.autograd.grad(other(initial()).sum(), list(other.parameters()))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)  # up to rounding
    assert all(p.grad is None for p in model.parameters())


DEVICES = {
    "cpu": (True, ""),
    "cuda": (torch.cuda.is_available(), "no CUDA device on this machine"),
    "mps": (torch.backends.mps.is_available(), "no MPS device on this machine"),
}


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("device", DEVICES)
def test_every_gradient_on_every_device_is_that_of_the_cpu(device: str, gradient: str) -> None:
    present, reason = DEVICES[device]
    if not present:
        pytest.skip(reason)
    f = Benign().float()
    y0 = initial().float().requires_grad_()
    settings: dict[str, Any] = {"method": method_of(gradient), "gradient": gradient}
    expected = torch.autograd.grad(qj.odeint(f, y0, TIMES, **settings).sum(), [y0, *f.parameters()])
    f, y0 = Benign().float().to(device), initial().float().to(device).requires_grad_()
    ys = qj.odeint(f, y0, TIMES.float().to(device), **settings)
    assert ys.device.type == device and ys.dtype == torch.float32
    for a, b in zip(torch.autograd.grad(ys.sum(), [y0, *f.parameters()]), expected, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_float32_solve_gives_the_dynamics_no_float64(gradient: str) -> None:
    """Devices without float64 see what the dynamics see: the state, the time and every operation on them."""
    from torch.utils._python_dispatch import TorchDispatchMode

    made: set[str] = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(x, Tensor) and x.dtype == torch.float64 and x.ndim > 1:
                    made.add(func.__name__)
            return out

    f, y0 = Benign().float(), initial().float().requires_grad_()
    with Watch():
        qj.odeint(f, y0, TIMES.float(), method=method_of(gradient), gradient=gradient).sum().backward()
    made.discard("lift_fresh.default")  # coefficients of a method on the host, before they are cast
    assert not made, f"state-sized float64 tensors in a float32 solve: {made}"
