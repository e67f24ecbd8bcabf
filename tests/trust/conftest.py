from __future__ import annotations

from collections.abc import Iterator

import pytest

from quadjoint.errors import forget_warnings
from trust.helpers import quiet


@pytest.fixture(autouse=True)
def _without_remarks_on_speed() -> Iterator[None]:
    """Tests of a warning ask for it by ``pytest.warns``, and find it although it is given once in a process."""
    forget_warnings()
    with quiet():
        yield
