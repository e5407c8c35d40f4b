"""The ways in which Numba compiles kernels: for given signatures, kept on disk, and without holding the GIL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Untyped, for the option ``_nrt``.
_njit: Any = numba.njit


def kernel(*signatures: Any) -> Callable[[_Function], _Function]:
    """Compile for these signatures now, or take the result from the disk cache."""
    return cast("Callable[[_Function], _Function]", _njit(list(signatures), nogil=True, cache=True))


def brief_kernel(*signatures: Any) -> Callable[[_Function], _Function]:
    """As :func:`kernel`, but the GIL is held: for less than a microsecond of work beside threads that want the GIL.

    Whoever lets go of it waits for it again, for up to the switch interval of each thread that wants it as well.
    """
    return cast("Callable[[_Function], _Function]", _njit(list(signatures), cache=True))


def kernel_part(function: _Function) -> _Function:
    """A part of kernels, inlined by LLVM. The disk cache does not notice changes of parts in other files."""
    return cast("_Function", _njit(forceinline=True)(function))


def byte_kernel(*signatures: Any) -> Callable[[_Function], _Function]:
    """As :func:`kernel`, of a function that allocates nothing: all arrays belong to the caller.

    Without ``_nrt=False`` every call of a part counts the references of its arrays, which takes eight times as long as
    the work on a few bytes.
    """
    decorate = _njit(list(signatures), nogil=True, cache=True, _nrt=False)
    return cast("Callable[[_Function], _Function]", decorate)


def byte_kernel_part(function: _Function) -> _Function:
    """A part of byte kernels, which allocates nothing either; see :func:`kernel_part`."""
    return cast("_Function", _njit(nogil=True, forceinline=True, _nrt=False)(function))
