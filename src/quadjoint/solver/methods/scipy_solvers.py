"""Steps of SciPy's solvers, among them the implicit ones for stiff problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.errors import StepSizeUnderflowError, nearest
from quadjoint.solver.methods.jacobian import JacobianSource, RowJacobian, linearize
from quadjoint.solver.protocols import Clock, Nudge, Stepper, VectorField

DENSE = 1000  # numbers in a state up to which LSODA, which knows no sparse matrices, is given its Jacobian


class ScipyStep:
    """A step that SciPy took."""

    retry = slope = error = ratio = clock = None
    settled = False

    def __init__(self, solver: Any, y0: Tensor, y1: Tensor) -> None:
        self.t0, self.t1, self.y0, self.y1 = float(solver.t_old), float(solver.t), y0, y1
        self.carry, self._dense = solver, solver.dense_output()

    def evaluate(self, times: Sequence[float]) -> Tensor:
        values = self._dense(np.asarray(times)).T.reshape(len(times), *self.y0.shape)
        return torch.as_tensor(values).to(self.y0)

    def evaluate_at(self, times: Tensor) -> Tensor:
        raise NotImplementedError("SciPy's steps cannot be differentiated in their times.")

    def scatter(self, rows: Tensor, times: np.ndarray) -> Tensor:
        return self.evaluate(times.tolist())[torch.arange(len(rows), device=rows.device), rows]

    def polynomial(self) -> None:
        return None

    def smooth(self) -> ScipyStep:
        return self


class Scipy(Stepper):
    """Steps of SciPy's solvers (``solve_ivp`` methods, also implicit ones), each chosen and accepted by SciPy."""

    free = True
    recordable = transformable = False

    def __init__(self, solver: str, *, rtol: Any, atol: Any, **options: Any) -> None:
        try:
            from scipy import integrate
        except ImportError as error:
            raise ImportError("method='scipy_solver' needs SciPy: pip install scipy") from error
        known = {"RK45", "RK23", "DOP853", "Radau", "BDF", "LSODA"}
        if solver not in known:
            raise ValueError(f"options['solver'] = {solver!r} is not a SciPy method.{nearest(solver, known)}")
        self.kind = getattr(integrate, solver)
        self.order = {"RK23": 3, "DOP853": 8}.get(solver, 5)
        self.rtol, self.atol, self.options = rtol, atol, options
        self.given = {"solver": solver, **options}

    def derivatives(self, f: VectorField, t0: float, y: Tensor) -> dict[str, Any]:
        """The Jacobian by autograd for the implicit solvers, whose differences of f are none in float32.

        SciPy is left to its own where autograd gives none, or where nothing but products would fit.
        """
        name = self.kind.__name__
        if name not in ("Radau", "BDF", "LSODA") or "jac" in self.options or y.is_complex() or not y.numel():
            return {}
        if f.own_jacobian is not None or (name == "LSODA" and y.numel() > DENSE):
            return {}
        try:
            if not linearize(f, t0, y).out.requires_grad:
                return {}
            samples, found = JacobianSource().first(f, t0, y, 0)
        except RuntimeError:  # f is not made for autograd
            return {}
        if not isinstance(found, RowJacobian):
            return {}

        def jac(t: float, flat: np.ndarray) -> Any:
            state = torch.as_tensor(flat).to(y).reshape(y.shape)
            rows = JacobianSource().again(f, float(t), state, 0, samples)
            assert isinstance(rows, RowJacobian)
            blocks = rows.matrix.cpu().double().numpy()
            if samples.rows == 1:
                return blocks[0]
            from scipy import sparse

            whole = sparse.block_diag(list(blocks), format="csc")
            return whole.toarray() if name == "LSODA" else whole

        return {"jac": jac}

    def step(
        self,
        f: VectorField,
        t0: float,
        t1: float,
        y: Tensor,
        *,
        carry: Any = None,
        nudge: Nudge = (0, 0),
        clock: Clock | None = None,
    ) -> ScipyStep:
        if carry is None or carry.status != "running" or carry.t_bound != t1:
            wide = torch.complex128 if y.is_complex() else torch.float64

            def numpy_f(t: float, flat: np.ndarray) -> np.ndarray:
                out = f(float(t), torch.as_tensor(flat).to(y).reshape(y.shape))
                return out.detach().cpu().reshape(-1).to(wide).numpy()

            flat = y.detach().cpu().reshape(-1).to(wide).numpy()
            options = {**self.derivatives(f, t0, y), **self.options}
            carry = self.kind(numpy_f, t0, flat, t1, rtol=self.rtol, atol=self.atol, **options)
        message = carry.step()
        if carry.status == "failed":
            raise StepSizeUnderflowError(f"SciPy's {self.kind.__name__} stopped at t = {carry.t:.6g}: {message}")
        return ScipyStep(carry, y, torch.as_tensor(carry.y.copy()).to(y).reshape(y.shape))
