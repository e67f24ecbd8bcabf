"""Damaged, foreign and hostile files, full disks and unwritable folders: what must come of them.

The tests and the table in ``docs/reliability.md`` run the same list. Each entry works in a folder of its own, asserts
that nothing is lost, and returns the words that the user gets.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from quadjoint import cli
from quadjoint.experiments import crossing, memory, store, toy_gradient
from quadjoint.experiments.execute import Job, checkpoint_path, execute
from quadjoint.experiments.faults import Refusal
from quadjoint.experiments.files import write_whole
from quadjoint.experiments.training import Context, load

NOBODY = 65534
QUIET = Console(quiet=True)
JOB = Job("crossing", crossing.Config(width=4, epochs=2, method="discrete"))
OTHER = Job("crossing", crossing.Config(width=6, epochs=2, method="discrete"))
SOUND = Job("memory", memory.Config(width=1000, tightest=1e-3, method="discrete"))  # its one figure is quickly drawn
TOY = Job("toy-gradient", toy_gradient.Config(first=1.0, last=2.0, points=3, method="discrete"))
Record = dict[str, Any]


@dataclass(frozen=True)
class FileFault:
    """A fault, what is done in a folder, and the words that must come of it."""

    name: str
    run: Callable[[Path], str]
    pattern: str


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """An empty folder that every user can reach."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@contextlib.contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file can grow beyond ``limit`` bytes: a write breaks off in its middle, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Nothing can be made in the folder; the superuser, who may write anywhere, is nobody for that while."""
    mode, root = folder.stat().st_mode, os.geteuid() == 0
    folder.chmod(0o555)
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(mode)


@functools.cache
def record_of(job: Job) -> Record:
    """The record of a tiny run."""
    with workplace() as folder:
        return execute(job, folder, Context())


def said(*arguments: str) -> str:
    """What the command prints; an exception that it lets through goes through here too."""
    out, before = io.StringIO(), sys.argv
    sys.argv = ["quadjoint", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
            cli.main()
    finally:
        sys.argv = before
    return " ".join(out.getvalue().split())


def refused(run: Callable[[], object]) -> str:
    try:
        run()
    except Refusal as refusal:
        return str(refusal)
    return "accepted"


def failed(run: Callable[[], object]) -> str:
    """The words of the operating system's refusal, which torch may wrap in an error of its own."""
    try:
        return str(run())
    except (OSError, RuntimeError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        return f"{type(cause).__name__}: {cause.strerror}" if isinstance(cause, OSError) else str(error)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# Full disks and unwritable folders -----------------------------------------------------------------------------------


def no_room(act: Callable[[Path], object], limit: int) -> Callable[[Path], str]:
    """A sound run of ``act``, then one for which there is no room: every file must be as before."""

    def run(folder: Path) -> str:
        store.append(folder / store.RESULTS, record_of(SOUND))
        act(folder)
        before = files(folder)
        with full_disk(limit):
            words = failed(lambda: act(folder))
        after = files(folder)
        assert {name: after.get(name) for name in before} == before, "an earlier file is damaged"
        assert after.keys() == before.keys(), f"left behind: {', '.join(after.keys() - before.keys())}"
        return words

    return run


def append_without_room(folder: Path) -> str:
    path = folder / store.RESULTS
    store.append(path, record_of(SOUND))
    before = path.read_bytes()
    with full_disk(len(before) + 100):
        words = failed(lambda: store.append(path, record_of(TOY)))
    assert path.read_bytes() == before
    store.append(path, record_of(TOY))
    assert len(store.read(path).records) == 2 and not store.read(path).problems
    return words


def checkpoint(folder: Path) -> None:
    write_whole(folder / "run.pt", functools.partial(torch.save, {"epoch": 1, "x": torch.ones(5000)}))


def report(folder: Path) -> str:
    return said("report", "--out", str(folder))


def plot(folder: Path) -> str:
    return said("plot", "--out", str(folder))


def unwritable_folder(act: Callable[[Path], str]) -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        store.append(folder / store.RESULTS, record_of(SOUND))
        report(folder)
        before = files(folder)
        try:
            with unwritable(folder):
                return act(folder)
        finally:
            assert files(folder) == before

    return run


# Checkpoints ---------------------------------------------------------------------------------------------------------


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def resumed_from(prepare: Callable[[Path], None]) -> Callable[[Path], str]:
    """A run that finds a checkpoint which is not its own must be as one that finds none."""

    def run(folder: Path) -> str:
        path = checkpoint_path(folder, JOB)
        path.parent.mkdir(parents=True)
        prepare(path)
        found = execute(JOB, folder, Context())["result"]["curves"]["train_loss"]
        assert found == record_of(JOB)["result"]["curves"]["train_loss"]
        return "starts anew"

    return run


def truncated(path: Path) -> None:
    checkpoint(path.parent)
    path.write_bytes((path.parent / "run.pt").read_bytes()[:3000])


def another_model(path: Path) -> None:
    execute(OTHER, path.parents[1], Context())
    os.replace(checkpoint_path(path.parents[1], OTHER), path)


def code_in_a_checkpoint(folder: Path) -> str:
    torch.save({"epoch": Evil(folder / "ran")}, folder / "run.pt")
    assert load(folder / "run.pt") is None
    assert not (folder / "ran").exists()
    return "not loaded, and nothing run"
