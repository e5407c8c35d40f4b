"""Commands ``weir security ...``: certificates and tokens."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from weir.errors import ConfigError
from weir.process.entry_point import run

security_app = typer.Typer(
    name="security",
    help="Make the certificates and tokens with which processes on several machines know each other.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)


def _certificates() -> ModuleType:
    try:
        return importlib.import_module("weir.security.certificates")
    except ImportError as error:
        if error.name != "cryptography":
            raise
        raise ConfigError(
            "certificates are made by the package cryptography: pip install 'weir[security]'"
        ) from None


_DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Where the files are.")]
_HostOption = Annotated[
    list[str] | None,
    typer.Option("--host", help="Name or address of a machine, for HTTPS; can be given several times."),
]
_DaysOption = Annotated[int, typer.Option("--days", help="How long certificates are valid.")]
_INIT_EPILOG = """
Examples:

\b
weir security init security --host weir.example --host 10.0.0.5
"""


@security_app.command(epilog=_INIT_EPILOG)
def init(directory: _DirectoryArgument, host: _HostOption = None, days: _DaysOption = 365) -> None:
    """Make an authority (ca.pem, ca.key), certificates of all roles, and the tokens look and operate."""

    def work() -> int:
        made = _certificates()
        written = made.initialise(directory, host or [], days, made.now())
        print("\n".join(map(str, written)))
        print(
            f"Keep {directory / made.AUTHORITY_KEY_FILE} where no process of Weir runs; each machine gets ca.pem, the "
            "files of its roles and, for HTTP, the tokens. docs/security.md says more."
        )
        return 0

    run("weir security init", work)


@security_app.command()
def renew(directory: _DirectoryArgument, host: _HostOption = None, days: _DaysOption = 365) -> None:
    """Make new certificates of the same authority; processes that run take them within seconds."""

    def work() -> int:
        made = _certificates()
        print("\n".join(map(str, made.renew(directory, host or [], days, made.now()))))
        return 0

    run("weir security renew", work)
