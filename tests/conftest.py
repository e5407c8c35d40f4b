import atexit
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.util import Finalize
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from experiments import processes
from experiments.forked_processes import Forks
from experiments.ports import SHARE_VARIABLE, free_port
from experiments.spark_forking import DAEMON
from services import cassandra, jars, kafka
from tests.effort import cases
from tests.memory_directory import make_memory_directory
from tests.scheduling import LongestFilesFirst, is_missing, may_start_processes
from tests.secure_listener import broker_properties, write_certificate
from tests.shared_collection import SharedCollection
from weir.config.stores import CassandraConfig
from weir.errors import StateError
from weir.state.cassandra.session import leave_session, open_session

# How long an example takes says how busy the machine is.
settings.register_profile(
    "busy", deadline=None, max_examples=cases(25), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")

#: What ``make test`` asks for at last.
START_PROCESSES = "not (not scenario and not spark and not service)"

#: Of a failure, when it happens; all of it stands in the summary.
_LINES_AT_ONCE = 30

#: Only few tests are about a lease that ends, and they set it themselves; in others a process may be kept waiting.
LEASE_TIMEOUT_MS = 20_000

#: py4j leaves the sockets of finished threads to the garbage collector.
OF_PY4J = ("ignore:unclosed <socket:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

#: New ones before some are looked at; Python's own default of 700 is for programs that keep few.
GC_OBJECTS = 20_000

#: A new node creates its first user within about 10 s on a machine of its own.
ROLE_S_MAX = 180.0


class _FailuresAtOnce:
    """Tells of a failed test when it fails: a run that is ended at a time limit never comes to its summary."""

    def __init__(self, reporter):
        self._reporter = reporter

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._reporter.write_line(
                f"\nFAILED {report.nodeid} ({report.when}, after {report.duration:.1f} s)"
            )
            self._reporter.write_line("\n".join(report.longreprtext.splitlines()[-_LINES_AT_ONCE:]))


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    """Compiled modules are kept, and the workers of pytest-xdist never ask for the same ports."""
    # Containers often ask for none to be kept; then each worker, and many a process of a test, compiles all again.
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""
    sys.dont_write_bytecode = False
    # Servers of tests live for minutes: half of what a Java machine takes to start goes into its second compiler.
    os.environ["SERVICES_JVM"] = "-XX:TieredStopAtLevel=1"
    # So do those of Spark: a session that counts by key once took 8.5 s of the processor with it, 13.7 s without.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    # Workers of pytest-xdist load Polars later. As in a task manager: a pool of threads would only add switches.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell script's background job ignores Ctrl-C, and so would every process of a test.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if reporter := config.pluginmanager.getplugin("terminalreporter"):
        config.pluginmanager.register(_FailuresAtOnce(reporter))
    worker = getattr(config, "workerinput", None)
    if worker:
        os.environ[SHARE_VARIABLE] = f"{worker['workerid'].removeprefix('gw')}/{worker['workercount']}"
        config.pluginmanager.register(SharedCollection(worker["workerid"]))
    elif "not scenario" in config.option.markexpr and (directory := make_memory_directory()):
        # Workers inherit it. Of processes that are killed, what they keep stays on the disk.
        os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
        # After the folder that multiprocessing has in it, which it removes when this process exits (priority -100).
        Finalize(None, shutil.rmtree, (directory, True), exitpriority=-200)


def pytest_ignore_collect(collection_path, config):
    """Of the tests that start processes few files have any; the others are not imported for them."""
    if collection_path.suffix == ".py" and config.option.markexpr == START_PROCESSES:
        return not may_start_processes(collection_path) or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What shares a server stands together in ``tests/scheduling.py``; what starts processes shows it by its marks."""
    marked = [(item, {mark.name for mark in item.iter_markers()}) for item in items]
    with_servers = (item for item, marks in marked if {"service", "spark"} & marks)
    if missing := {item.path.name for item in with_servers if is_missing(item.nodeid)}:
        raise pytest.UsageError(f"tests/scheduling.py has no group with {', '.join(sorted(missing))}")
    files = {item.path for item, marks in marked if {"scenario", "service", "spark"} & marks}
    if missing := {path.name for path in files if not may_start_processes(path)}:
        raise pytest.UsageError(f"no mark of tests that start processes in {', '.join(sorted(missing))}")
    for item, marks in marked:
        if "spark" in marks:
            for warning in OF_PY4J:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What 6,000 tests import and are is no garbage: a quarter of the time went into looking for some."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # Tests make and leave so much that a twentieth of the time went into looking for cycles in what is new.
        gc.set_threshold(GC_OBJECTS)
        gc.enable()
        # At the very end libraries tell of objects that are still there; pytest looks for garbage before.
        atexit.register(gc.unfreeze)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With ``--dist loadfile``: the longest files first, and those that share a server on the same worker."""
    return LongestFilesFirst(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Processes that a test of kind ``scenario`` starts have a long lease; runs before all fixtures."""
    if item.get_closest_marker("scenario"):
        os.environ["WEIR_CONTROLPLANE_LEASE_TIMEOUT_MS"] = str(LEASE_TIMEOUT_MS)
    else:
        os.environ.pop("WEIR_CONTROLPLANE_LEASE_TIMEOUT_MS", None)


@pytest.fixture(scope="session")
def forks():
    """Makes processes without the time that they take to import; that of ``python -m`` is used by the other tests."""
    with Forks() as forks:
        yield forks


@pytest.fixture
def forked(forks, monkeypatch):
    """Processes of a benchmark or an experiment that a test calls are forked, too."""
    monkeypatch.setattr(processes, "start_process", forks.popen)


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory):
    """A real broker that all tests share: its addresses, those with TLS and passwords, and the certificate.

    The last value are the ports of a listener behind a proxy: the proxy's, and the broker's.
    """
    if missing := jars.missing_program():
        pytest.skip(missing)
    directory = tmp_path_factory.mktemp("kafka")
    port, secure_port, late_port, proxy_port = free_port(), free_port(), free_port(), free_port()
    certificate, keystore = write_certificate(directory / "tls")
    properties = broker_properties(port, secure_port, keystore, late_port, proxy_port)
    bootstrap = kafka.start(directory / "broker", base_port=port, properties=properties)
    yield bootstrap, f"{kafka.HOST}:{secure_port}", certificate, (proxy_port, late_port)
    kafka.stop(directory / "broker", wipe=True)


@pytest.fixture(scope="session")
def kafka_bootstrap(kafka_broker):
    """Addresses of that broker."""
    return kafka_broker[0]


class CassandraNode:
    """A real node on 127.0.0.1."""

    def __init__(self, directory, port, storage_port):
        self.directory, self.port = directory, port
        self.certificate, pem = write_certificate(directory.with_name("tls"))
        # Of connections with TLS and without, at one port.
        encryption = {
            "enabled": True,
            "optional": True,
            "ssl_context_factory": {"class_name": "org.apache.cassandra.security.PEMBasedSslContextFactory"},
            "keystore": str(pem),
            "truststore": str(self.certificate),
        }
        # Logins and permissions are checked; user and password are "cassandra".
        properties = {
            "authenticator": "PasswordAuthenticator",
            "authorizer": "CassandraAuthorizer",
            "role_manager": "CassandraRoleManager",
            "client_encryption_options": json.dumps(encryption),
        }
        self._settings = {
            "port": port,
            "storage_port": storage_port,
            "heap": "512m",
            "properties": properties,
        }

    def start(self):
        """Start it, or start it again; returns when it serves."""
        cassandra.start(self.directory, **self._settings)

    def wait_for_role(self):
        """Return when its user can log in.

        A new node creates it only after it serves already, and one that was stopped for long does not answer at once.
        """
        settings = CassandraConfig(port=self.port, username="cassandra", password="cassandra")
        until_s = time.monotonic() + ROLE_S_MAX
        while True:
            try:
                leave_session(open_session(settings))
                return
            except StateError:
                if time.monotonic() > until_s:
                    raise
            time.sleep(0.2)

    def kill(self):
        """As kill -9."""
        cassandra.kill(self.directory)

    def pause(self, pid_signal):
        """Send it a signal: SIGSTOP makes it slow beyond measure, and has stopped every thread of it on return.

        On a busy machine the thread that takes the signal may wait for a processor while others go on answering.
        """
        ((daemon, _, _),) = cassandra.states(self.directory)
        os.kill(daemon.pid, pid_signal)
        if pid_signal == signal.SIGSTOP:
            threads = Path(f"/proc/{daemon.pid}/task")
            while not all(map(_stands, threads.glob("*/stat"))):
                time.sleep(0.001)

    def wipe(self):
        """End it and delete its data."""
        cassandra.stop(self.directory, wipe=True)


def _stands(stat):
    """Whether a thread is stopped, or has ended meanwhile, by its file below /proc."""
    try:
        return " T " in stat.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(scope="session")
def cassandra_node(tmp_path_factory):
    """A node that all tests of a worker share; whoever kills it starts it again."""
    if missing := jars.missing_program():
        pytest.skip(missing)
    node = CassandraNode(tmp_path_factory.mktemp("cassandra") / "node", free_port(), free_port())
    node.start()
    node.wait_for_role()
    yield node
    node.wipe()


@pytest.fixture(scope="session")
def cassandra_port(request):
    """Port of a real node; that of one that runs already: WEIR_TEST_CASSANDRA_PORT."""
    running = os.environ.get("WEIR_TEST_CASSANDRA_PORT")
    return int(running) if running else request.getfixturevalue("cassandra_node").port


class SharedSpark:
    """One Spark session for the tests of a process: starting one takes several seconds, and the JVM stays."""

    def __init__(self):
        self._open, self._session = ExitStack(), None

    def session(self):
        """The session, started if there is none."""
        from weir.spark.session import open_session

        if self._session is None:
            conf = {"spark.sql.shuffle.partitions": "2", **DAEMON}
            opened = open_session("weir tests", "local[2]", short_run=True, conf=conf)
            self._session = self._open.enter_context(opened)
        return self._session

    def close(self):
        """End the session, if there is one; the next one starts at once."""
        self._session = None
        self._open.close()


@pytest.fixture(scope="session")
def shared_spark():
    shared = SharedSpark()
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def spark(shared_spark):
    """A Spark session, for all tests of a file."""
    return shared_spark.session()


@pytest.fixture
def no_spark(shared_spark):
    """No Spark session is open: what a test calls opens its own. Not in a file that asks for ``spark``."""
    shared_spark.close()


@pytest.fixture
def own_spark(spark):
    """A session beside it, as jobs have it."""
    from weir.spark.running import own_session

    return own_session(spark)


@pytest.fixture
def call_script(no_spark, capfd):
    """Call the application of workgen.py or plot.py in this process, where a JVM runs already.

    Returns its exit code, and all that the process wrote meanwhile.
    """

    def call(app, *arguments):
        with pytest.raises(SystemExit) as ended:
            app([*map(str, arguments)])
        return ended.value.code, *capfd.readouterr()

    return call


@pytest.fixture
def run_script():
    """Run workgen.py or plot.py as a user does."""

    def run(script, *arguments, env=None):
        command = [sys.executable, str(Path(__file__).parents[1] / script), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=250, check=False)

    return run
