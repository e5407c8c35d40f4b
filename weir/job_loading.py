"""From ``--job jobs.server_count --param rate=1000`` to a logical graph. Both processes load a job this way.

A job is a module with a function ``build(...)`` that returns a ``weir.Dataflow``. Its keyword parameters
are the job's parameters: the text of ``--param NAME=VALUE`` is converted by their annotations.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from weir.builder import Dataflow
from weir.errors import GraphError, WeirError
from weir.graph import LogicalGraph
from weir.spelling import did_you_mean

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


@dataclass(frozen=True)
class LoadedJob:
    """A job ready to run; ``parameters`` has a value for every parameter of ``build``."""

    graph: LogicalGraph
    parameters: dict[str, object]


@dataclass(frozen=True)
class Parameter:
    """One keyword parameter of a job's ``build``."""

    name: str
    annotation: Any
    default: object = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        """Whether ``build`` has no default for it."""
        return self.default is inspect.Parameter.empty

    def __str__(self) -> str:
        text = f"{self.name}: {_type_text(self.annotation)}"
        return f"{text} (required)" if self.required else f"{text} = {self.default!r}"


def load_job(module: str, parameters: Mapping[str, str], defaults: Mapping[str, object]) -> LoadedJob:
    """Import a job and build its graph.

    Args:
        module: dotted path; the current directory is importable.
        parameters: given by the user, as text; "none" stands for None where that is allowed.
        defaults: values that come from the configuration, such as ``{"input": fileName}``; used
            for parameters of that name that the user did not give, ignored where ``build`` has none.

    Raises:
        GraphError: the module cannot be imported, has no ``build``, a parameter is unknown, missing or of a
            wrong type, or the dataflow is not valid. One line, naming the module.
    """
    build = _load_build(module)
    known = _parameters(module, build)
    for name in parameters:
        if name not in known:
            raise GraphError(
                f"job {module} has no parameter {name!r}{did_you_mean(name, known)}"
                f" Its parameters: {', '.join(map(str, known.values())) or 'none'}"
            )
    values: dict[str, object] = {}
    for name, parameter in known.items():
        if name in parameters:
            values[name] = _convert(module, parameter, parameters[name], from_text=True)
        elif name in defaults:
            values[name] = _convert(module, parameter, defaults[name], from_text=False)
        elif not parameter.required:
            values[name] = parameter.default
        else:
            raise GraphError(f"job {module} needs parameter {name!r}; give it with --param {name}=VALUE")
    return LoadedJob(_build_graph(module, build, values), values)


def describe_parameters(module: str) -> list[str]:
    """One line for each parameter of a job, such as ``rate: float | None = None``; for ``--help``.

    Raises:
        GraphError: as for :func:`load_job`.
    """
    return [str(parameter) for parameter in _parameters(module, _load_build(module)).values()]


def _load_build(module: str) -> Callable[..., object]:
    if not _MODULE.fullmatch(module):
        raise GraphError(
            f"job {module!r} is not a module path; write it with dots, such as jobs.server_count"
        )
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise GraphError(
                f"job {module}: there is no module {error.name} in {os.getcwd()} or on the Python path"
            ) from error
        raise GraphError(
            f"job {module} cannot be imported: it needs module {error.name}, which is absent"
        ) from error
    except Exception as error:
        raise GraphError(f"job {module} cannot be imported: {_one_line(error)}") from error
    build = getattr(loaded, "build", None)
    if not callable(build):
        raise GraphError(f"job {module} has no function build(...); add one that returns a weir.Dataflow")
    return typing.cast("Callable[..., object]", build)


def _parameters(module: str, build: Callable[..., object]) -> dict[str, Parameter]:
    try:
        hints = typing.get_type_hints(build)
        signature = inspect.signature(build)
    except Exception as error:
        raise GraphError(
            f"job {module}: the annotations of build cannot be read: {_one_line(error)}"
        ) from error
    known = {}
    for name, item in signature.parameters.items():
        if item.kind not in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY):
            raise GraphError(
                f"job {module}: parameter {name!r} of build cannot be given by name; make it a keyword"
            )
        known[name] = Parameter(name, hints.get(name, str), item.default)
    return known


def _convert(module: str, parameter: Parameter, value: object, *, from_text: bool) -> object:
    arguments = typing.get_args(parameter.annotation) if _is_union(parameter.annotation) else ()
    if from_text and types.NoneType in arguments and str(value).lower() == "none":
        return None
    try:
        return TypeAdapter(parameter.annotation).validate_python(value)
    except PydanticUserError as error:
        text = _type_text(parameter.annotation)
        raise GraphError(f"job {module}: {text} of parameter {parameter.name} is not supported") from error
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise GraphError(
            f"job {module}: parameter {parameter.name}={value!r} is not "
            f"{_type_text(parameter.annotation)}: {reason}"
        ) from error


def _build_graph(module: str, build: Callable[..., object], values: Mapping[str, object]) -> LogicalGraph:
    try:
        flow = build(**values)
        if isinstance(flow, Dataflow):
            return flow.build()
    except WeirError as error:
        raise GraphError(f"job {module}: {error}") from error
    except Exception as error:
        raise GraphError(f"job {module}: build failed: {_one_line(error)}") from error
    raise GraphError(
        f"job {module}: build returned {type(flow).__name__}, not a weir.Dataflow; end it with 'return flow'"
    )


def _is_union(annotation: object) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _type_text(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
