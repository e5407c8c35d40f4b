"""The way from ``--job jobs.server_count --param rate=1000`` to a logical graph, which both processes take.

A job is a module with a function ``build(...)`` that returns a ``weir.Dataflow``. Its keyword parameters
are the job's parameters: the text of ``--param NAME=VALUE`` is converted by their annotations.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from weir.dataflow.builder import Dataflow
from weir.dataflow.traceback import job_code_error, place_in_job, suggestion
from weir.errors import GraphError, WeirError
from weir.plan.graph import LogicalGraph
from weir.redaction import HIDDEN, KNOWN, names_secret, redacted
from weir.specs import CollectSpec
from weir.spelling import did_you_mean, did_you_mean_only

#: Parameters that the configuration fills where a job has no default for them, with the keys of config.json.
CONFIGURED_KEYS = {"input": "fileName", "max_parallelism": "controlPlane.max_parallelism"}

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


@dataclass(frozen=True)
class LoadedJob:
    """A job ready to run."""

    graph: LogicalGraph
    #: A value for every parameter of ``build``, in the form that JSON has for it.
    parameters: dict[str, object]
    #: Where each value comes from, in words.
    origins: dict[str, str] = field(default_factory=dict)

    def describe_parameters(self) -> str:
        """Return a line with every parameter, without credentials, and where it comes from; what was given first."""
        texts: dict[str, list[str]] = {}
        for name, value in redacted(self.parameters).items():
            texts.setdefault(self.origins.get(name, "another process"), []).append(f"{name}={value!r}")
        given_first = sorted(texts.items(), key=lambda item: item[0] != "--param")
        return "; ".join(f"from {origin}: {', '.join(listed)}" for origin, listed in given_first)


@dataclass(frozen=True)
class Parameter:
    """A keyword parameter of a job's ``build``."""

    name: str
    annotation: Any
    default: object = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        """Return whether ``build`` has no default for it."""
        return self.default is inspect.Parameter.empty

    def __str__(self) -> str:
        text = f"{self.name}: {_type_text(self.annotation)}"
        if not self.required:
            return f"{text} = {_shown(self.name, self.default)}"
        key = CONFIGURED_KEYS.get(self.name)
        return f"{text} (config.json: {key})" if key else f"{text} (required)"


def load_job(module: str, parameters: Mapping[str, str], configured: Mapping[str, object]) -> LoadedJob:
    """Import a job and build its graph.

    Args:
        module: dotted path; the current directory is importable.
        parameters: given by the user, as text; "none" stands for None where that is allowed.
        configured: values that come from the configuration, by parameter; used for parameters that the user did not
            give and that have no default in ``build``, ignored where ``build`` has none of that name.

    Raises:
        GraphError: the module cannot be imported, has no ``build``, a parameter is unknown, missing or of a
            wrong type, or the dataflow is not valid. One line, naming the module.
        JobCodeError: the same, if the user's own code raised; with its traceback.
    """
    # What does not fit is quoted.
    KNOWN.learn(parameters)
    build = _load_build(module)
    known = _parameters(module, build)
    for name in parameters:
        if name not in known:
            near = did_you_mean(name, known)
            raise GraphError(
                f"job {module} has no parameter {name!r}{near}{'' if near.endswith('?') else '.'}"
                f" Its parameters: {', '.join(map(str, known.values())) or 'none'}"
            )
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for name, parameter in known.items():
        if name in parameters:
            values[name] = _convert(module, parameter, parameters[name], from_text=True)
            origins[name] = "--param"
        elif not parameter.required:
            values[name] = _convert_default(module, parameter)
            origins[name] = "the job's default"
        elif name in configured:
            values[name] = _convert(module, parameter, configured[name], from_text=False)
            origins[name] = f"config.json key {CONFIGURED_KEYS.get(name, name)}"
        else:
            raise GraphError(f"job {module} needs parameter {name!r}; give it with --param {name}=VALUE")
    return _loaded(module, build, known, values, origins)


def load_deployed_job(module: str, values: Mapping[str, object]) -> LoadedJob:
    """The job as another process built it, from the values of all its parameters (``LoadedJob.parameters``).

    Raises:
        GraphError, JobCodeError: as for :func:`load_job`.
    """
    build = _load_build(module)
    known = _parameters(module, build)
    if values.keys() != known.keys():
        raise GraphError(
            f"job {module} has parameters {', '.join(known) or 'none'} here, but was started with "
            f"{', '.join(values) or 'none'}: start all processes from the same code"
        )
    converted = {
        name: _convert(module, parameter, values[name], from_text=False) for name, parameter in known.items()
    }
    return _loaded(module, build, known, converted, {})


def _loaded(
    module: str,
    build: Callable[..., object],
    known: Mapping[str, Parameter],
    values: Mapping[str, object],
    origins: dict[str, str],
) -> LoadedJob:
    """Build with what is left of the values after a way through JSON, as in every other process."""
    told = {name: _to_json(module, known[name], value) for name, value in values.items()}
    KNOWN.learn(told)
    used = {name: _convert(module, known[name], value, from_text=False) for name, value in told.items()}
    return LoadedJob(_build_graph(module, build, used), told, origins)


def describe_parameters(module: str) -> list[str]:
    """Return a line for each parameter of a job, such as ``rate: float | None = None``; for ``--help``.

    Raises:
        GraphError: as for :func:`load_job`.
    """
    return [str(parameter) for parameter in _parameters(module, _load_build(module)).values()]


def _modules_beside(name: str) -> list[str]:
    """Return the modules of the package in which one was looked for."""
    package = name.rpartition(".")[0]
    path = getattr(sys.modules.get(package), "__path__", [])
    return [f"{package}.{each.name}" for each in pkgutil.iter_modules(path)]


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
            near = did_you_mean_only(module, _modules_beside(error.name))
            raise GraphError(
                f"job {module}: there is no module {error.name} in {os.getcwd()} or on the Python path{near}"
            ) from error
        raise job_code_error(
            f"job {module} cannot be imported: it needs module {error.name}, which is absent", error
        ) from error
    except (Exception, SystemExit) as error:
        raise job_code_error(f"job {module} cannot be imported: {_one_line(error)}", error) from error
    build = getattr(loaded, "build", None)
    if not callable(build):
        place = getattr(loaded, "__file__", None) or "a folder"
        raise GraphError(
            f"job {module} ({place}) has no function build(...); add one that returns a weir.Dataflow"
        )
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
            f"job {module}: parameter {parameter.name}={_shown(parameter.name, value)} is not "
            f"{_type_text(parameter.annotation)}: {reason}"
        ) from error


def _convert_default(module: str, parameter: Parameter) -> object:
    try:
        return _convert(module, parameter, parameter.default, from_text=False)
    except GraphError as error:
        mend = (
            f"{_type_text(parameter.annotation)} | None" if parameter.default is None else "another default"
        )
        raise GraphError(
            f"{error}; the job's own default does not fit: annotate or give it as {mend}"
        ) from error


def _to_json(module: str, parameter: Parameter, value: object) -> object:
    try:
        return TypeAdapter(parameter.annotation).dump_python(value, mode="json", warnings=False)
    except (PydanticUserError, PydanticSerializationError) as error:
        text = _type_text(parameter.annotation)
        raise GraphError(f"job {module}: {text} of parameter {parameter.name} is not supported") from error


def _build_graph(module: str, build: Callable[..., object], values: Mapping[str, object]) -> LogicalGraph:
    try:
        flow = build(**values)
        if isinstance(flow, Dataflow):
            return _for_processes(flow, flow.build())
    except WeirError as error:
        if error.names_place:
            raise
        # Its message is enough, with the line that asked for it.
        raise GraphError(f"job {module}: {error}{place_in_job(error)}") from error
    except (Exception, SystemExit) as error:
        raise job_code_error(f"job {module}: build failed: {_one_line(error)}", error) from error
    raise GraphError(
        f"job {module}: build returned {type(flow).__name__}, not a weir.Dataflow; end it with 'return flow'"
    )


def _for_processes(flow: Dataflow, graph: LogicalGraph) -> LogicalGraph:
    for node in graph.nodes:
        if isinstance(node.spec, CollectSpec):
            raise GraphError(
                f"step {node.name!r}: weir.Collect() keeps rows in the process that calls weir.run(flow); on task "
                "managers end the branch with another sink, such as weir.JsonLinesSink(...)"
                f"{flow.line_of(node.name)}"
            )
    return graph


def _shown(name: str, value: object) -> str:
    """A value in a message; of a secret there is nothing."""
    is_secret = names_secret(name) and isinstance(value, str) and value
    return HIDDEN if is_secret else repr(redacted(value))


def _is_union(annotation: object) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _type_text(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}{suggestion(error)}" if text else type(error).__name__
