"""What the user is told in one sentence instead of a traceback."""

from __future__ import annotations


class Refusal(Exception):
    """The request cannot be met; the message says why and what to do."""


# What code may raise on a record that has the right form and wrong contents.
ODD_RECORD = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
