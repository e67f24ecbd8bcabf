"""Damaged and hostile files, full disks, unwritable folders: words, and nothing lost."""

from __future__ import annotations

import re

import pytest

from reliability.file_faults import FILE_FAULTS
from reliability.files import FileFault, workplace


def _case(fault: FileFault) -> object:
    known = pytest.mark.xfail(reason=fault.weakness, strict=False)
    return pytest.param(fault, id=fault.name, marks=known if fault.weakness else ())


@pytest.mark.parametrize("fault", [_case(fault) for fault in FILE_FAULTS])
def test_files_and_folders_that_misbehave(fault: FileFault) -> None:
    with workplace() as folder:
        words = fault.run(folder)
    assert re.search(fault.pattern, words), words
