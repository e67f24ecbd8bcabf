"""The one place for what is remembered of a function between solves: compiled graphs.

Nothing here changes a number. Entries live as long as the function, module or object that they are kept for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

_store: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def remembered(f: Callable[..., Any]) -> dict[Any, Any]:
    """What is kept for ``f``: for itself, the object of a method, or what it says is its ``cache_owner``.

    The latter is for dynamics that are made anew for every solve but are alike, such as those with a path of noise.
    Of functions that cannot be hashed or referenced weakly nothing is kept.
    """
    owner = getattr(f, "cache_owner", getattr(f, "__self__", f))
    try:
        return _store.setdefault(owner, {})
    except TypeError:
        return {}


def clear_cache() -> None:
    """Forget everything that is remembered of functions; results stay the same.

    >>> import quadjoint as qj
    >>> qj.clear_cache()
    """
    _store.clear()
