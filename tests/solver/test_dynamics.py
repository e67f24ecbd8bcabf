"""How f is called."""

from __future__ import annotations

import pytest
import torch

from quadjoint.solver.dynamics import Dynamics


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("t", [-(2.0**15), -1.0, 0.0, 1.0, 300.0, 2.0**15, 2.0**24, 2.0**54])
def test_a_time_is_moved_to_the_next_number_on_either_side(t: float, dtype: torch.dtype) -> None:
    """Also where numbers lie further apart than one."""
    f = Dynamics(lambda t, y: y, torch.ones(1, dtype=dtype))
    at = f.time(t)
    if not at.isfinite():
        return
    below, above = f.time(t, -1), f.time(t, 1)
    assert below < at < above
    for other in (below, above):  # and no further
        assert f.time(0.5 * (float(other) + t)) in (other, at)
