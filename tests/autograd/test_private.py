"""Names of torch that are not documented: a torch without them gives the same results."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad

import quadjoint as qj
from gradient.helpers import ALL, Driven, loss, normal, times
from quadjoint.autograd import private

SOURCE = Path(qj.__file__).parent
T = times(0.0, 0.5, 1.0)


def found(how: str) -> list[torch.Tensor]:
    f, y0 = Driven(), normal(4, 3).requires_grad_()
    f.net[0].weight.register_hook(lambda g: 2.0 * g)
    sol = qj.solve(f, y0, T, gradient=how, rtol=1e-6, atol=1e-8)
    return list(torch.autograd.grad(loss(sol.ys) + sol(0.3).sum(), [y0, *f.parameters()]))


@pytest.mark.parametrize("how", ["auto", *ALL])
def test_results_are_the_same_without_any_of_the_names(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = found(how)
    monkeypatch.setattr(private, "_lookup", lambda *path: None)
    for a, b in zip(found(how), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def transformed(name: str) -> torch.Tensor:
    weight, y0 = torch.tensor([0.3, 0.8], dtype=torch.float64), normal(3, 2)

    def solve(w: torch.Tensor) -> torch.Tensor:
        return qj.odeint(lambda t, y: -w * y * torch.cos(t), y0, T, method="rk4" if name == "vmap" else "dopri5")

    if name == "grad":
        return torch.func.grad(lambda w: loss(solve(w)))(weight)
    if name == "vmap":
        return torch.func.vmap(solve)(torch.stack([weight, 2 * weight]))
    if name == "jvp":
        return torch.func.jvp(solve, (weight,), (weight,))[1]
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(solve(forward_ad.make_dual(weight, weight))).tangent


@pytest.mark.parametrize("name", ["grad", "vmap", "jvp", "forward_ad"])
def test_transforms_are_right_without_the_names_or_torch_says_no(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A solve that does not know that it is transformed must not lose a derivative."""
    wanted = transformed(name)
    monkeypatch.setattr(private, "_lookup", lambda *path: None)
    try:
        found = transformed(name)
    except RuntimeError:
        pass  # torch's own words
    else:
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


def test_the_names_are_there_today() -> None:
    """A fallback that is in use without anybody noticing would be slow for ever."""
    for path in (
        ("_C", "_functorch", "peek_interpreter_stack"),
        ("_C", "_autograd", "_get_current_graph_task_keep_graph"),
        ("_C", "_current_graph_task_id"),
        ("_C", "_autograd", "_top_saved_tensors_default_hooks"),
        ("_C", "_functorch", "get_unwrapped"),
        ("_C", "_functorch", "maybe_get_level"),
        ("_functorch", "pyfunctorch", "temporarily_pop_interpreter_stack"),
        ("autograd", "forward_ad", "_current_level"),
    ):
        assert private._lookup(*path) is not None
    assert hasattr(torch.ones(1), "_version") and hasattr(torch.ones(1), "_backward_hooks")


def test_private_names_of_torch_are_used_nowhere_else() -> None:
    """Attributes that begin with an underscore, of anything that is torch's by its name."""
    pattern = re.compile(r"\btorch(\.\w+)*\._[a-zA-Z]|\._version\b|\._backward_hooks\b|\._backward_pre_hooks\b")
    users = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if pattern.search(path.read_text(encoding="utf-8"))
    }
    assert users == {"autograd/private.py"}


LAYERS = ("errors", "quadrature", "autograd", "solver", "gradient", "arrange", "conclude", "solution", "ode", "explain")


def layer(module: str) -> int | None:
    """The place of a module among the layers; None for those above, which may import anything below."""
    part = module.split(".")[1] if "." in module else ""
    return LAYERS.index(part) if part in LAYERS else None


@pytest.mark.parametrize("name", LAYERS)
def test_imports_point_downwards(name: str) -> None:
    own = LAYERS.index(name)
    files = [SOURCE / f"{name}.py"] if (SOURCE / f"{name}.py").exists() else sorted((SOURCE / name).rglob("*.py"))
    assert files
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("quadjoint"):
                target = layer(str(node.module))
                within = path.name == "explain.py"  # which measures with the tools of the experiments
                assert within or (target is not None and target <= own), f"{path}: {node.module}"


def test_no_two_modules_have_one_name() -> None:
    names = [path.stem for path in SOURCE.rglob("*.py") if path.stem != "__init__"]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice


def test_importing_the_library_does_not_import_the_compiler() -> None:
    import subprocess

    code = "import sys, quadjoint; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
