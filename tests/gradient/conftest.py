from __future__ import annotations

import pytest

from quadjoint.errors import forget_warnings


@pytest.fixture(autouse=True)
def _warnings_speak_again() -> None:
    """Warnings that are given once in a process are given in every test that causes them."""
    forget_warnings()
