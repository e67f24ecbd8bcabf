"""Damaged and hostile files, full disks, unwritable folders: words, and nothing lost."""

from __future__ import annotations

import re

import pytest

from reliability.file_faults import FILE_FAULTS
from reliability.files import FileFault, workplace


@pytest.mark.parametrize("fault", FILE_FAULTS, ids=lambda fault: fault.name)
def test_files_and_folders_that_misbehave(fault: FileFault) -> None:
    with workplace() as folder:
        words = fault.run(folder)
    assert re.search(fault.pattern, words), words
