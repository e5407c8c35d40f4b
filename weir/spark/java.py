"""Finding a Java runtime that Spark can use, before Spark looks for it and fails at length."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from weir.errors import ConfigError

#: Spark 4 does not start on anything older.
JAVA_MAJOR_MIN = 17
#: A cold JVM on a loaded machine answers ``-version`` within a second or two.
_VERSION_TIMEOUT_S = 30
_MEND = f"install a Java {JAVA_MAJOR_MIN}+ runtime (Debian: openjdk-{JAVA_MAJOR_MIN}-jre-headless)"


def parse_java_major(version_text: str) -> int | None:
    """Read the major version out of what ``java -version`` prints.

    Args:
        version_text: The whole output; ``"1.8.0_402"``, ``"17.0.15"`` and ``"24-ea"`` forms are known.

    Returns:
        8 for the old ``1.8`` scheme, otherwise the first number; None when no version is found.
    """
    found = re.search(r'version "(\d+)(?:\.(\d+))?', version_text)
    if found is None:
        return None
    major, minor = int(found[1]), found[2]
    return int(minor) if major == 1 and minor is not None else major


def find_java(environ: Mapping[str, str] | None = None) -> Path:
    """Find the Java that Spark's launcher would take, and check its version.

    The launcher takes ``$JAVA_HOME/bin/java`` when JAVA_HOME is set, otherwise ``java`` on PATH.

    Args:
        environ: Environment variables; those of this process when None.

    Returns:
        The path of the ``java`` program.

    Raises:
        ConfigError: None is found, it does not run, or it is older than ``JAVA_MAJOR_MIN``.
    """
    env = os.environ if environ is None else environ
    java = _locate(env)
    try:
        done = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{java} does not run ({error}): {_MEND}") from error
    major = parse_java_major(done.stderr + done.stdout)
    if done.returncode != 0 or major is None:
        raise ConfigError(f"{java} -version does not tell a Java version: {_MEND}")
    if major < JAVA_MAJOR_MIN:
        raise ConfigError(
            f"{java} is Java {major}, Spark needs {JAVA_MAJOR_MIN} or newer: {_MEND}, or set JAVA_HOME to one"
        )
    return java


def _locate(env: Mapping[str, str]) -> Path:
    home = env.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / ("java.exe" if os.name == "nt" else "java")
        if not java.is_file():
            raise ConfigError(f"JAVA_HOME is {home}, but {java} does not exist: mend JAVA_HOME or unset it")
        return java
    # An empty PATH must find nothing; which() would fall back to a built-in path for None.
    found = shutil.which("java", path=env.get("PATH", ""))
    if found is None:
        raise ConfigError(f"Spark needs Java, and there is no java on PATH and no JAVA_HOME: {_MEND}")
    return Path(found)
