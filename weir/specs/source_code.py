"""The source of users' functions and classes, of which fingerprints have digests."""

from __future__ import annotations

import inspect
import weakref
from typing import Any

#: Python before 3.13 parses the whole file to find a class in it, and each start of a job asks for each class of it.
_of_classes: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def source_of(target: Any) -> str:
    """Returns what :func:`inspect.getsource` does; of a class, as it was when first asked for.

    Raises:
        OSError: there is none.
        TypeError: it is no code of Python.
    """
    if not isinstance(target, type):
        return inspect.getsource(target)
    source = _of_classes.get(target)
    if source is None:
        source = _of_classes[target] = inspect.getsource(target)
    return source
