"""A quiet Spark session, and Spark's failures turned into one line."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.errors import ConfigError, ConnectionLostError, WeirError
from weir.spark.java import find_java

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

LOG_CONFIG = Path(__file__).with_name("log4j2.properties")
#: How long an attempt to reach one address of a ``spark://`` master may take.
MASTER_CONNECT_TIMEOUT_S = 3.0
DEFAULT_MASTER = "local[*]"
_LOCAL_MASTER = re.compile(r"local(\[(\*|[1-9]\d*)\])?")
_DEFAULT_MASTER_PORT = 7077
#: All that Spark says where one of its threads waited for another one, which failed.
_OUTER = "Exception thrown in awaitResult"
#: Spark puts these into the environment of a stateful function, perhaps while it sends that function to tasks, which
#: then fail with an OptionalDataException. Where these are there already, the map does not grow.
_PUT_BY_STREAMS = (
    "SPARK_LOCAL_DIRS",
    "SPARK_AUTH_SOCKET_TIMEOUT",
    "SPARK_BUFFER_SIZE",
    "SPARK_PYTHON_RUNTIME",
)


class SparkFailedError(WeirError):
    """Spark gave up; the message is the innermost cause that it named, on one line."""


@contextmanager
def open_session(
    app_name: str,
    master: str = DEFAULT_MASTER,
    *,
    driver_memory_bytes: int = 1 << 30,
    short_run: bool = False,
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Start Spark and stop it at the end of the block.

    Local masters listen on 127.0.0.1 only. The web UI, Spark's own progress bar and its log lines are off.
    The JVM lives until this Python process ends, so a second session in the same process starts at once.

    Args:
        app_name: The name shown by a cluster's UI.
        master: ``local``, ``local[N]``, ``local[*]``, ``spark://host:port``, ``yarn`` or ``k8s://...``.
        driver_memory_bytes: Heap of the driver's JVM, which with a local master does all the work. Holds for
            the first session of the process.
        short_run: Whether the work is a matter of seconds. The JVM then spends less on compiling: 40 % less
            CPU for a million events, a third more for ten million. Holds for the first session too.
        conf: Settings of Spark that come before all others.

    Yields:
        The session; its time zone is UTC.

    Raises:
        ConfigError: Java or pyspark is missing, Java is too old, or ``master`` is not of a known form.
        ConnectionLostError: No address of a ``spark://`` master accepts connections.
        SparkFailedError: Spark does not start, or fails inside the block.
    """
    check_master(master)
    find_java()
    if find_spec("pyspark") is None:
        raise ConfigError(
            "pyspark is not installed: run make setup, or install the dependency group workload"
        )
    from pyspark import SparkContext
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    # It writes every query's failure, stack traces included, to the terminal; the exception says the same.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    _quiet_bridge()
    settings = _configuration(app_name, master, driver_memory_bytes, short_run=short_run)
    settings.setAll(list((conf or {}).items()))
    if _LOCAL_MASTER.fullmatch(master):
        # Spark's own default is the first python3 on PATH, which need not have what this one has.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with spark_failures():
        context = SparkContext(conf=settings, gateway=_Jvm.gateway(settings))
        context.setLogLevel("OFF")
        for name in _PUT_BY_STREAMS:
            context.environment.setdefault(name, "")
        session = SparkSession(context)
        try:
            yield session
        finally:
            session.stop()


def check_master(master: str) -> None:
    """Check the form of a master's address, and that a standalone master is there.

    Args:
        master: As for ``open_session``.

    Raises:
        ConfigError: The form is not known.
        ConnectionLostError: None of the ``spark://`` addresses accepts a connection within
            ``MASTER_CONNECT_TIMEOUT_S``. Spark itself would try for a minute.
    """
    if _LOCAL_MASTER.fullmatch(master) or master == "yarn" or master.startswith("k8s://"):
        return
    if not master.startswith("spark://"):
        raise ConfigError(
            f"--master {master!r} is not known: use local, local[N], local[*], spark://host:port, yarn or k8s://..."
        )
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.partition(":")
        if not host or not (port or str(_DEFAULT_MASTER_PORT)).isdigit():
            raise ConfigError(f"--master {master!r}: {address!r} is not host:port")
        try:
            with socket.create_connection(
                (host, int(port or _DEFAULT_MASTER_PORT)), timeout=MASTER_CONNECT_TIMEOUT_S
            ):
                return
        except OSError:
            continue
    raise ConnectionLostError(
        f"no Spark master answers at {master}: start it, mend --master, or leave --master out to run locally"
    )


@contextmanager
def spark_failures() -> Iterator[None]:
    """Turn whatever Spark raises inside the block into ``SparkFailedError``; other errors pass.

    Raises:
        SparkFailedError: Spark or the bridge to its JVM failed.
    """
    from pyspark.errors import PySparkException

    # py4j carries no type information.
    bridge_error: type[Exception] = import_module("py4j.protocol").Py4JError
    try:
        yield
    except (bridge_error, PySparkException) as error:
        # What its JVM says is whole in the trace only, which PySpark keeps to itself.
        trace = getattr(error, "_stackTrace", None) or ""
        raise SparkFailedError(f"Spark failed: {told_cause(str(error), trace)}") from error


def started_too_slowly(error: object) -> bool:
    """Whether Spark gave up because a Python process of its own took more than ten seconds to begin.

    Spark has no setting for that time. A query that failed so has done nothing, and can be started again.
    """
    return "Python worker failed to connect back" in str(error)


def spark_path(path: Path) -> str:
    """Return an absolute local path as Spark takes it for writing.

    Hadoop does not decode percent signs, so ``Path.as_uri()`` would name another directory for ``my events``.
    """
    return f"file://{path}"


def told_cause(text: str, trace: str) -> str:
    """Return what explains a failure in one line: of the JVM's trace where Spark's text says only where it waited."""
    return innermost_cause(trace if _OUTER in text and trace else text)


def innermost_cause(text: str) -> str:
    """Pick the line that explains a failure out of a Java stack trace.

    Args:
        text: The message of the Python exception, stack trace included.

    Returns:
        What a Python process of Spark raised, in one line; else the last ``Caused by:`` line without that prefix, or
        the first line that names an exception, or the first line; at most 300 characters.
    """
    if raised := _raised_in_python(text.splitlines()):
        return raised[:300]
    lines = [
        line.strip().removeprefix('Exception in thread "main" ') for line in text.splitlines() if line.strip()
    ]
    caused = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    named = [line.removeprefix(": ") for line in lines if re.match(r"(: )?[\w.$]+(Exception|Error)\b", line)]
    return (caused[-1:] or named[:1] or lines[:1] or ["no reason given"])[0][:300]


def _raised_in_python(lines: Sequence[str]) -> str:
    """Return what the last traceback of Python among the lines ends with; "": there is none."""
    starts = [
        number for number, line in enumerate(lines) if line.endswith("Traceback (most recent call last):")
    ]
    if not starts:
        return ""
    after = itertools.dropwhile(lambda line: not line.strip() or line[0].isspace(), lines[starts[-1] + 1 :])
    message = itertools.takewhile(lambda line: line.strip() and not line[0].isspace(), after)
    return "; ".join(line.strip() for line in message)


def _quiet_bridge() -> None:
    """Keep py4j from writing stack traces of failed calls to the terminal, in part as the root logger."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    root = logging.getLogger()
    root.removeFilter(_is_not_of_bridge)
    root.addFilter(_is_not_of_bridge)


def _is_not_of_bridge(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _configuration(app_name: str, master: str, driver_memory_bytes: int, *, short_run: bool) -> SparkConf:
    from pyspark import SparkConf

    java_options = f"-Dlog4j2.configurationFile={LOG_CONFIG.as_uri()}"
    if short_run:
        java_options += " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(app_name)
    conf.setAll(
        [
            ("spark.driver.memory", f"{driver_memory_bytes >> 20}m"),
            ("spark.driver.extraJavaOptions", java_options),
            ("spark.ui.enabled", "false"),
            ("spark.ui.showConsoleProgress", "false"),
            ("spark.sql.session.timeZone", "UTC"),
            ("spark.sql.ansi.enabled", "true"),
            # Small shuffles are joined by adaptive execution; 200 tasks for a few megabytes cost seconds.
            ("spark.sql.shuffle.partitions", "16"),
            # Checksum files beside each part would only be deleted again.
            ("spark.hadoop.fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem"),
        ]
    )
    if master.startswith("local"):
        conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    return conf


class _Jvm:
    """The one JVM of this process: py4j keeps a single gateway per process."""

    _gateway: Any = None
    _log_fd = -1

    @classmethod
    def gateway(cls, conf: SparkConf) -> Any:
        """Launch the JVM, or return the one that runs.

        Raises:
            SparkFailedError: The JVM exits at once; the message carries the last line that it printed.
        """
        if cls._gateway is not None:
            return cls._gateway
        import pyspark
        from pyspark import java_gateway

        launch: Any = java_gateway.launch_gateway  # without annotations in pyspark

        # Another Spark's SPARK_HOME would be started with this pyspark's protocol.
        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
        if (conf.get("spark.master") or "").startswith("local"):
            # Spark resolves the machine's own name otherwise, and fails or warns where that has no address.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        cls._log_fd, log_name = tempfile.mkstemp(prefix="weir-spark-")
        os.unlink(log_name)
        try:
            cls._gateway = launch(conf, {"stdout": cls._log_fd, "stderr": cls._log_fd})
        except Exception as error:
            # At this boundary anything means the same to the user: the JVM does not run.
            os.lseek(cls._log_fd, 0, os.SEEK_SET)
            said = os.read(cls._log_fd, 1 << 20).decode(errors="replace")
            os.close(cls._log_fd)
            raise SparkFailedError(f"Spark's JVM does not start: {innermost_cause(said)}") from error
        atexit.register(cls.close)
        return cls._gateway

    @classmethod
    def close(cls) -> None:
        """End the JVM; called when the process exits."""
        gateway, cls._gateway = cls._gateway, None
        if gateway is None:
            return
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=20)
        os.close(cls._log_fd)
