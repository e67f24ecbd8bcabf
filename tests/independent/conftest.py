from __future__ import annotations

import pytest

from quadjoint.errors import forget_warnings


@pytest.fixture(autouse=True)
def _warnings_speak_again() -> None:
    forget_warnings()
