"""What the user is told in one sentence instead of a traceback."""

from __future__ import annotations


class Refusal(Exception):
    """The request cannot be met; the message says why and what to do."""


class Halt(Refusal):
    """Nothing can go on: what failed for this run, a full disk say, would fail for every other one."""


# What code may raise on a record that has the right form and wrong contents.
ODD_RECORD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


def one_line(words: object, most: int = 300) -> str:
    """Words of another program or machine as they can stand in a sentence on a terminal.

    >>> one_line("no route\\n  to \\x1b[31mhost")
    'no route to [31mhost'
    """
    text = "".join(c if c.isprintable() else " " for c in str(words).replace("\x1b", ""))
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most]} ..."
