"""Where the ``quadjoint`` command begins: outside the package, because importing that already imports torch.

For these seconds Ctrl-C ends the program with a sentence. An exception would not do: the packages under import may
catch it, or tell of it in many lines.
"""

from __future__ import annotations

import os
import signal
import types


def _stop(signum: int, frame: types.FrameType | None) -> None:
    os.write(2, b"\nquadjoint: stopped\n")
    os._exit(130)


def main() -> None:
    """Import the command, then run it."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _stop)
    from quadjoint.cli import main

    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, before)
    main()
