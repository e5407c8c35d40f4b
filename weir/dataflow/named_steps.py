"""Steps whose name was left out: the methods of streams that add a step say so, with an example."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from weir.errors import GraphError
from weir.spelling import did_you_mean

_Kind = TypeVar("_Kind", bound=type)

#: Characters of an argument that a message shows.
_SHOWN_MAX = 40
#: What comes after the name, by method.
_EXAMPLES = {
    "filter": 'pl.col("x") > 0',
    "with_columns": 'total=pl.col("x") * 2',
    "select": '"a", "b"',
    "drop": '"column"',
    "rename": '{"old": "new"}',
    "explode": '"column"',
    "union": "other",
    "sink": "weir.Print()",
    "source": 'weir.JsonLines("input.jsonl", schema={"x": int})',
    "assign_event_time": '"column"',
    "aggregate": 'n=weir.count(), total=weir.sum("x")',
    "deduplicate": "",
    "count": "",
    "pass_through": "",
    "top": 'by="x", rows=10',
    "window_top": 'by="n", rows=10',
}


def named_steps(kind: _Kind) -> _Kind:
    """Class decorator: each method that takes the name of a step first, and more, refuses to be called without.

    The others refuse arguments that they do not have.
    """
    for method, function in list(vars(kind).items()):
        if not method.startswith("_") and inspect.isfunction(function):
            parameters = list(inspect.signature(function).parameters.values())
            if method != "side_output" and len(parameters) > 1 and parameters[1].name == "name":
                setattr(kind, method, _checked(method, function, parameters[2:]))
            elif not {each.kind for each in parameters} & {inspect.Parameter.VAR_KEYWORD}:
                setattr(kind, method, _known(method, function, parameters[1:]))
    return kind


def _known(method: str, function: Callable[..., Any], others: list[inspect.Parameter]) -> Callable[..., Any]:
    names = [each.name for each in others if each.kind is not each.VAR_POSITIONAL]

    @functools.wraps(function)
    def call(self: Any, *given: Any, **settings: Any) -> Any:
        for name in settings:
            if name not in names:
                raise GraphError(f"{method}: there is no argument {name!r}{did_you_mean(name, names)}")
        return function(self, *given, **settings)

    return call


def _checked(
    method: str, function: Callable[..., Any], others: list[inspect.Parameter]
) -> Callable[..., Any]:
    needed = [each for each in others if _is_needed(each)]
    positional = [each for each in others if each.kind is each.POSITIONAL_OR_KEYWORD]
    kinds = {each.kind for each in others}

    @functools.wraps(function)
    def call(self: Any, *given: Any, **settings: Any) -> Any:
        is_given = bool(given) or "name" in settings
        name = given[0] if given else settings.get("name")
        if not is_given or not (name is None or isinstance(name, str)):
            what = f", got {type(name).__name__}" if is_given else ""
            raise GraphError(
                f"{method}: the first argument is the name of the step{what}; write {_example(method, others)}"
            )
        if len(given) > 1 + len(positional) and inspect.Parameter.VAR_POSITIONAL not in kinds:
            raise GraphError(
                f"{method}: {_short(given[1 + len(positional)])} has no name; write {_example(method, others)}"
            )
        unknown = [each for each in settings if each not in {"name", *(known.name for known in others)}]
        if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
            settings_known = [each.name for each in others]
            raise GraphError(
                f"{method}: there is no argument {unknown[0]!r}{did_you_mean(unknown[0], settings_known)}"
            )
        is_there = {each.name for each in positional[: max(0, len(given) - 1)]} | settings.keys()
        missing = next((each.name for each in needed if each.name not in is_there), None)
        if missing is not None:
            raise GraphError(
                f"{method}: {missing} is missing; the first argument, here {name!r}, is the name of the step; write "
                f"{_example(method, others)}"
            )
        return function(self, *given, **settings)

    return call


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"the {type(value).__name__}"


def _is_needed(parameter: inspect.Parameter) -> bool:
    kinds = (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    return parameter.default is parameter.empty and parameter.kind not in kinds


def _example(method: str, others: list[inspect.Parameter]) -> str:
    rest = _EXAMPLES.get(method)
    if rest is None:
        needed = [each for each in others if _is_needed(each)]
        rest = ", ".join(
            f"{each.name}=..." if each.kind is each.KEYWORD_ONLY else each.name for each in needed
        )
    return f'{method}("name", {rest})' if rest else f'{method}("name")'
