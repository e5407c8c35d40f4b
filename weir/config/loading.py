"""Reads and merges the settings; every wrong one becomes a line that says where it is and what is allowed."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_origin

from pydantic import ValidationError

from weir.config.keys import (
    ALIASES,
    OTHER_VARIABLES,
    WITHOUT_EFFECT,
    Key,
    all_keys,
    environment_name,
    may_be_secret,
    section_models,
    suggest,
)
from weir.config.models import Config
from weir.errors import ConfigError
from weir.redaction import HIDDEN, KNOWN, redacted, redacted_text

#: Read when no path is given, from the working directory.
DEFAULT_PATH = "config.json"
_SHOWN_CHARACTERS_MAX = 80
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True)
class LoadedConfig:
    """The settings in force, and lines to show the user once at start."""

    config: Config
    warnings: list[str]


@dataclass
class _Draft:
    """Values gathered so far as nested dictionaries with the file's spelling of keys."""

    document: dict[str, Any]
    file: str
    #: Dotted key -> the variable or flag that set it; keys not in here come from the file.
    origins: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def override(self, dotted: str, text: str, origin: str) -> None:
        """Put the value of a variable or flag over what is there."""
        if dotted in WITHOUT_EFFECT:
            self.warnings.append(_without_effect(origin, dotted))
            return
        if dotted in ALIASES:
            self.warnings.append(f"{origin}: {dotted} is now called {ALIASES[dotted]}")
            dotted = ALIASES[dotted]
        section = self.document
        for name in dotted.split(".")[:-1]:
            if not isinstance(section.get(name, {}), dict):
                return  # validation reports the section that is no object
            section = section.setdefault(name, {})
        section[dotted.rpartition(".")[2]] = _from_text(all_keys()[dotted], text)
        self.origins[dotted] = origin

    def origin(self, dotted: str) -> str:
        """Where a value came from, as messages name it."""
        return self.origins.get(dotted, self.file)


def load_config(
    path: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    tells_of_absence: bool = True,
) -> LoadedConfig:
    """The settings of this process: flags win over variables, those over the file, that over the defaults.

    Entry points call it once, before anything else.

    Args:
        path: the file asked for (``--config``), which must exist; None: ``config.json`` of the working
                directory, which may be absent.
        environment: usually ``os.environ``; only names that begin with ``WEIR_`` are looked at.
        overrides: dotted key -> text, from the command line; see :func:`parse_set_flags`.
        tells_of_absence: whether it is worth a warning that there is no ``config.json``.

    Raises:
        ConfigError: one line per problem: file, variable or flag; key; value; what is allowed.
    """
    draft = _read_file(path, tells_of_absence=tells_of_absence)
    _rename_aliases(draft)
    _drop_without_effect(draft)
    for name, text in sorted((environment or {}).items()):
        if name.startswith("WEIR_") and name not in OTHER_VARIABLES:
            _apply_variable(draft, name, text)
    for dotted, text in (overrides or {}).items():
        if dotted in all_keys() or dotted in ALIASES or dotted in WITHOUT_EFFECT:
            draft.override(dotted, text, "command line")
        else:
            shown = _shown_of(dotted, text)
            draft.problems.append(f"command line: {dotted} = {shown}: unknown key; {suggest(dotted)}")
    # What is refused is quoted.
    KNOWN.learn(draft.document)
    config = _validate(draft)
    if draft.problems or config is None:
        raise ConfigError(KNOWN.hidden("\n".join(draft.problems)))
    KNOWN.learn(config.model_dump(mode="json"))
    _warn_of_deprecated_keys(draft, config)
    return LoadedConfig(config, draft.warnings)


def parse_set_flags(flags: Sequence[str]) -> dict[str, str]:
    """Values of repeated ``--set taskManager.batch_size=1000`` flags; of a repeated key the last one wins.

    Raises:
        ConfigError: a flag has no ``=``.
    """
    parsed = {}
    for flag in flags:
        dotted, separator, text = flag.partition("=")
        if not separator:
            raise ConfigError(f"command line: --set {flag}: write --set section.key=value")
        parsed[dotted.strip()] = text.strip()
    return parsed


def _read_file(path: str | Path | None, *, tells_of_absence: bool) -> _Draft:
    name = str(path if path is not None else DEFAULT_PATH)
    try:
        text = Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        if path is not None:
            raise ConfigError(f"{name}: no such configuration file") from None
        note = f"no {DEFAULT_PATH} in the working directory: built-in defaults are in force"
        return _Draft({}, "built-in defaults", warnings=[note] if tells_of_absence else [])
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot be read: {error}") from error
    try:
        document = json.loads(text, object_pairs_hook=_refuse_repeated_keys, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}: line {error.lineno}, column {error.colno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{name}: must hold one JSON object, not {_shown(document)}")
    return _Draft(document, name)


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} is there twice; keep one")
    return found


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _rename_aliases(draft: _Draft) -> None:
    for former, present in ALIASES.items():
        section_name, _, leaf = former.rpartition(".")
        section = draft.document.get(section_name)
        if not isinstance(section, dict) or leaf not in section:
            continue
        new_leaf = present.rpartition(".")[2]
        if new_leaf in section:
            draft.problems.append(f"{draft.file}: {former}: {present} is there as well; keep that one")
        section.setdefault(new_leaf, section[leaf])
        del section[leaf]
        draft.warnings.append(f"{draft.file}: {former} is now called {present}")


def _drop_without_effect(draft: _Draft) -> None:
    for dotted in sorted(WITHOUT_EFFECT):
        section_name, _, leaf = dotted.rpartition(".")
        section = draft.document.get(section_name)
        if isinstance(section, dict) and leaf in section:
            del section[leaf]
            draft.warnings.append(_without_effect(draft.file, dotted))


def _without_effect(origin: str, dotted: str) -> str:
    return f"{origin}: {dotted} has no effect, and never had one; remove it"


def _apply_variable(draft: _Draft, name: str, text: str) -> None:
    by_variable = {environment_name(dotted): dotted for dotted in (*WITHOUT_EFFECT, *ALIASES, *all_keys())}
    if name in by_variable:
        draft.override(by_variable[name], text, name)
        return
    near = difflib.get_close_matches(name, by_variable, 1, 0.75)
    hint = f"did you mean {near[0]}?" if near else "variables are called WEIR_<SECTION>_<KEY>"
    shown = HIDDEN if text and may_be_secret(name, by_variable) else _shown(text)
    draft.problems.append(f"{name} = {shown}: unknown variable; {hint}")


def _from_text(key: Key, text: str) -> Any:
    """The value that a variable or flag means; text that does not fit is left for validation to refuse."""
    annotation = key.field.annotation
    if annotation is bool:
        lowered = text.strip().lower()
        return True if lowered in _TRUE else False if lowered in _FALSE else text
    if get_origin(annotation) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if annotation in (int, float):
        try:
            return int(text)
        except ValueError:
            pass
        try:
            return float(text)
        except ValueError:
            return text
    return text


def _validate(draft: _Draft) -> Config | None:
    try:
        return Config.model_validate(draft.document, by_alias=True, by_name=False)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            draft.problems.append(_describe(draft, [str(part) for part in detail["loc"]], dict(detail)))
        return None


def _describe(draft: _Draft, location: list[str], detail: dict[str, Any]) -> str:
    dotted, value = ".".join(location), detail["input"]
    if detail["type"] == "extra_forbidden":
        return (
            f"{draft.origin(dotted)}: {dotted} = {_shown_of(dotted, value)}: unknown key; {suggest(dotted)}"
        )
    if dotted in section_models():
        # A check over several keys carries the name of the key to change as its type.
        changed = f"{dotted}.{detail['type']}"
        if changed in all_keys():
            shown = _shown_of(changed, value.get(detail["type"], all_keys()[changed].default))
            return f"{draft.origin(changed)}: {changed} = {shown}: {redacted_text(detail['msg'])}"
        return f"{draft.file}: {dotted} = {_shown(value)}: must be an object, {{...}}"
    while dotted not in all_keys():  # an element of a list: name the list
        location = location[:-1]
        dotted = ".".join(location)
    wanted = (
        redacted_text(detail["msg"]) if detail["type"] == "not_supported" else f"must be {_wanted(dotted)}"
    )
    return f"{draft.origin(dotted)}: {dotted} = {_shown_of(dotted, value)}: {wanted}"


def _wanted(dotted: str) -> str:
    key = all_keys()[dotted]
    return f"{key.allowed} ({key.unit})" if key.unit else key.allowed


def _shown_of(dotted: str, value: object) -> str:
    """The value of a key that is refused; of a password there is nothing, also where it is a number or misspelt."""
    known = [] if dotted in all_keys() else [each.rpartition(".")[2] for each in all_keys()]
    is_secret = value not in ("", None) and may_be_secret(dotted.rpartition(".")[2], known)
    return HIDDEN if is_secret else _shown(value)


def _shown(value: object) -> str:
    text = json.dumps(redacted(value), ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "..."


def _warn_of_deprecated_keys(draft: _Draft, config: Config) -> None:
    values = config.model_dump(by_alias=True)
    for dotted, key in all_keys().items():
        value: Any = values
        for name in dotted.split("."):
            value = value[name]
        if key.deprecated and value != key.default:
            draft.warnings.append(
                f"{draft.origin(dotted)}: {dotted} is deprecated and ignored; remove it or set it to "
                f"{_shown(key.default)}"
            )
