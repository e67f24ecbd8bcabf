"""Parameters with hooks, differentiated in without calling the hooks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from quadjoint.autograd import private


class Aliases(TorchFunctionMode):
    """Within this context, operations on tensors that have hooks are operations on copies that share their memory.

    Hooks of a parameter are for the gradient of the whole solve, not for those of its parts. The context belongs to
    the thread that enters it; the tensors and their hooks are not touched.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self.aliases = {id(x): x.detach().requires_grad_() for x in tensors if private.has_hooks(x)}

    def __bool__(self) -> bool:
        """Whether any tensor has an alias."""
        return bool(self.aliases)

    def of(self, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """The tensors to differentiate in."""
        return tuple(self.aliases.get(id(x), x) for x in tensors)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*self._exchanged(args), **self._exchanged(kwargs or {}))

    def _exchanged(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return self.aliases.get(id(x), x)
        if isinstance(x, dict):
            return {key: self._exchanged(value) for key, value in x.items()}
        if type(x) in (tuple, list):
            return type(x)(self._exchanged(value) for value in x)
        return x
