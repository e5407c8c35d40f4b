"""The jars of a service, fetched once by Maven."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.errors import ServiceError

HOME = Path(os.environ.get("WEIR_SERVICES_HOME") or Path.home() / ".cache" / "weir-services")
_POMS = Path(__file__).resolve().parent
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.11.0"


def say(text: str) -> None:
    """Tell the user what happens, on standard error: standard output has the address and nothing else."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock file, so that two starts at the same time do the work once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def java(*options: str) -> list[str]:
    """Begin of a command that runs Java; the options in ``SERVICES_JVM``, between blanks, come last and win."""
    return ["java", *options, *os.environ.get("SERVICES_JVM", "").split()]


def missing_program() -> str:
    """What is not on PATH and must be, in words for the user; empty: nothing is missing."""
    packages = {"java": "openjdk-17-jre-headless", "mvn": "maven"}
    missing = [name for name in packages if not shutil.which(name)]
    if not missing:
        return ""
    return f"{' and '.join(missing)} not on PATH: install (Debian) {' '.join(packages[name] for name in missing)}"


def jars(name: str) -> Path:
    """Directory with the jars that ``services/NAME.pom.xml`` names; fetched anew when that file has changed.

    Raises:
        ServiceError: Java or Maven is missing, or Maven could not fetch them.
    """
    pom = _POMS / f"{name}.pom.xml"
    directory = HOME / "jars" / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    if not shutil.which("java"):
        raise ServiceError(missing_program())
    # One Maven at a time: its own repository knows no locks.
    with locked(HOME / "jars" / ".lock"):
        if not directory.is_dir():
            if missing := missing_program():
                raise ServiceError(missing)
            say(f"fetching the jars of {name} (once) ...")
            _fetch(name, pom, directory)
    return directory


def _fetch(name: str, pom: Path, directory: Path) -> None:
    with tempfile.TemporaryDirectory(dir=directory.parent) as folder:
        # A copy of the pom: Maven may want to write beside it, and its own folder may be read-only.
        copy = shutil.copy(pom, Path(folder, "pom.xml"))
        command = [
            *("mvn", "-q", "-B", "-C", "-f", str(copy), f"{_PLUGIN}:copy-dependencies"),
            *("-DincludeScope=runtime", f"-DoutputDirectory={folder}/lib"),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise ServiceError(f"Maven could not fetch the jars of {name}:\n{done.stdout[-2000:]}")
        Path(folder, "lib").rename(directory)
