"""The ways in which Numba compiles kernels: for given signatures, kept on disk, and without holding the GIL.

A kernel is taken from the disk, or compiled, when it is first called: a job needs few of them. ``weir compile`` does it
ahead (:mod:`weir.console.kernel_compilation`).
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numba
import numba.types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.sigutils import normalize_signature

from weir.clock import SystemClock
from weir.kernels.cache import KernelCache

_CLOCK = SystemClock()
log = logging.getLogger(__name__)

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Lines on standard error are so far apart.
_TOLD_EVERY_S = 1.0
#: Untyped, for the option ``_nrt``.
_njit: Any = numba.njit
_types: Any = numba.types
_normalized: Any = normalize_signature


def _tell(name: str, seconds: float | None) -> None:
    if seconds is not None:
        log.info("compiled the kernel %s in %.1f s", name, seconds)
        return
    now_s = _CLOCK.monotonic_s()
    if now_s - _Told.at_s >= _TOLD_EVERY_S:
        _Told.at_s = now_s
        print(f"compiling kernels, once: {name}...", file=sys.stderr, flush=True)


class _Told:
    """Who is told of each kernel that is compiled in this process: its name, and the seconds when it is there."""

    report: Callable[[str, float | None], None] = staticmethod(_tell)
    at_s = -math.inf


def tell_compilations(report: Callable[[str, float | None], None]) -> None:
    """Call ``report`` when a kernel begins to be compiled in this process (None), and with the seconds it took."""
    _Told.report = staticmethod(report)


@dataclass(frozen=True)
class _Waiting:
    """A kernel that has not been called in this process."""

    load: Callable[[], None]
    cache: KernelCache


#: By module and name.
_waiting: dict[str, _Waiting] = {}
#: All of them, in the order in which modules were imported.
_names: list[str] = []
#: Those that were taken or compiled because of a call.
_called: set[str] = set()


def kernel_names() -> list[str]:
    """Names, with their modules, of the kernels of imported modules."""
    return list(dict.fromkeys(_names))


def called_kernels() -> frozenset[str]:
    """Names, with their modules, of the kernels that were not there when they were called in this process."""
    return frozenset(_called)


def is_loaded_or_kept(name: str) -> bool:
    """Whether a kernel can be called without being compiled, as far as one look at the disk can tell."""
    return name not in _waiting or _waiting[name].cache.is_kept()


def load_kernel(name: str) -> bool:
    """Take a kernel from the disk or compile it now; False if that is done. Blocks for seconds."""
    if found := _waiting.get(name):
        found.load()
    return found is not None


def load_first_kernel() -> None:
    """Take one kernel that the disk has; called when a process starts, before rows wait for it.

    The first one of a process takes half a second, for Numba and LLVM themselves, and each other one about 10 ms.
    """
    for name in kernel_names():
        if is_loaded_or_kept(name):
            load_kernel(name)
            return


def load_kept_kernels() -> None:
    """Take all kernels of imported modules that the disk has: before processes are forked from this one."""
    for name in kernel_names():
        if is_loaded_or_kept(name):
            load_kernel(name)


def name_of(kernel: Any) -> str:
    """The name of a kernel, with its module."""
    return f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}"


def _lazy(dispatcher: Any, signatures: Sequence[Any]) -> Any:
    """Let a dispatcher take its signatures, and no others, when it is first called by Python or by another kernel."""
    name = name_of(dispatcher)
    dispatcher._cache = cache = KernelCache(dispatcher.py_func)

    def load() -> None:
        with global_compiler_lock:
            if _waiting.get(name) is not waiting:
                return
            if not all(_from_disk(dispatcher, cache, signature) for signature in signatures):
                _compile(dispatcher, cache, signatures, name)
            dispatcher.disable_compile()
            del dispatcher._compile_for_args, dispatcher.get_call_template
            del _waiting[name]

    def compile_for_args(*args: Any, **options: Any) -> Any:
        _called.add(name)
        load()
        return _entry_point(dispatcher, args)

    def get_call_template(args: Any, options: Any) -> Any:
        load()
        return dispatcher.get_call_template(args, options)

    dispatcher._compile_for_args = compile_for_args
    dispatcher.get_call_template = get_call_template
    _names.append(name)
    waiting = _waiting[name] = _Waiting(load, cache)
    return dispatcher


def _entry_point(dispatcher: Any, args: Sequence[Any]) -> Any:
    """The compiled function for these arguments, as the dispatcher itself chooses it when it is called again."""
    if len(dispatcher.signatures) == 1:
        found = dispatcher.signatures[0]
    else:
        given = tuple(dispatcher.typeof_pyval(arg) for arg in args)
        cases = dispatcher.nopython_signatures
        found = dispatcher.typingctx.resolve_overload(dispatcher.py_func, cases, given, {}).args
    return dispatcher.overloads[found].entry_point


def _from_disk(dispatcher: Any, cache: KernelCache, signature: Any) -> bool:
    """As the dispatcher does it before it compiles."""
    if tuple(_normalized(signature)[0]) in dispatcher.overloads:
        # Twice it would be ambiguous which one to call.
        return True
    dispatcher._compilation_chain_init_hook()
    result = cache.load_overload(signature, dispatcher.targetctx)
    if result is None:
        return False
    dispatcher.targetctx.insert_user_function(result.entry_point, result.fndesc, [result.library])
    dispatcher.add_overload(result)
    return True


def _compile(dispatcher: Any, cache: KernelCache, signatures: Sequence[Any], name: str) -> None:
    with cache.compiling():
        began_s = None
        for signature in signatures:
            # Another process may have done it meanwhile.
            if began_s is None and not _from_disk(dispatcher, cache, signature):
                _Told.report(name, None)
                began_s = _CLOCK.monotonic_s()
            dispatcher.compile(signature)
        if began_s is not None:
            _Told.report(name, _CLOCK.monotonic_s() - began_s)


def kernel(*signatures: Any) -> Callable[[_Function], _Function]:
    """Compile for these signatures at the first call, or take the result from the disk cache."""
    return cast("Callable[[_Function], _Function]", _decorator(signatures, nogil=True))


def brief_kernel(*signatures: Any) -> Callable[[_Function], _Function]:
    """As :func:`kernel`, but the GIL is held: for less than a microsecond of work beside threads that want the GIL.

    Whoever lets go of it waits for it again, for up to the switch interval of each thread that wants it as well.
    """
    return cast("Callable[[_Function], _Function]", _decorator(signatures))


def byte_kernel(*signatures: Any) -> Callable[[_Function], _Function]:
    """As :func:`kernel`, of a function that allocates nothing: all arrays belong to the caller.

    Without ``_nrt=False`` every call of a part counts the references of its arrays, which takes eight times as long as
    the work on a few bytes.
    """
    return cast("Callable[[_Function], _Function]", _decorator(signatures, nogil=True, _nrt=False))


def _decorator(signatures: Sequence[Any], **options: Any) -> Any:
    def decorate(function: Any) -> Any:
        return _lazy(_njit(**options)(function), signatures)

    return decorate


def kernel_part(function: _Function) -> _Function:
    """A part of kernels, inlined by LLVM: what is kept of a kernel is of all its parts (``weir.kernels.sources``)."""
    return _part(function, forceinline=True)


def byte_kernel_part(function: _Function) -> _Function:
    """A part of byte kernels, which allocates nothing either; see :func:`kernel_part`."""
    return _part(function, nogil=True, forceinline=True, _nrt=False)


def _part(function: _Function, **options: Any) -> _Function:
    """Compiled once for each type: constants come with inlining, not by a version for the literal 0."""
    dispatcher = _njit(**options)(function)
    made = dispatcher.get_call_template
    dispatcher.get_call_template = lambda args, options: made(
        tuple(_types.unliteral(arg) for arg in args),
        {name: _types.unliteral(arg) for name, arg in options.items()},
    )
    return cast("_Function", dispatcher)
