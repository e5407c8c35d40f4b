"""Which files have tests that start processes, and in which order the workers of pytest-xdist take them."""

import re
from collections import OrderedDict

from xdist.scheduler.loadfile import LoadFileScheduling

#: Files whose tests share a server that is started once a worker; a Cassandra or Spark takes both cores for 20 s.
_TOGETHER = {
    "Cassandra": (
        "tests/scenarios/test_cassandra.py",
        "tests/scenarios/test_connected.py",
        "tests/scenarios/test_database_away.py",
        "tests/weir/operators/joins/test_lookup_join.py",
        "tests/weir/operators/keyed/test_value_none.py",
        "tests/weir/state/cassandra/test_ranges.py",
        "tests/weir/state/cassandra/test_read_ahead.py",
        "tests/weir/state/cassandra/test_real_database.py",
        "tests/weir/state/cassandra/test_tls.py",
        "tests/weir/state/test_conformance.py",
        "tests/weir/state/test_packed.py",
        "tests/weir/state/test_retained.py",
    ),
    "Kafka": (
        "tests/scenarios/test_kafka.py",
        "tests/scenarios/test_latest_answers.py",
        "tests/test_kafka_page.py",
        "tests/weir/operators/kafka/test_with_broker.py",
        "tests/weir/operators/kafka/test_fencing.py",
        "tests/weir/operators/kafka/test_lag.py",
        "tests/weir/operators/kafka/test_late_requests.py",
    ),
    "Spark": (
        "tests/benchmarks/test_peers.py",
        "tests/runners/test_command.py",
        "tests/runners/test_kafka.py",
        "tests/runners/test_runners.py",
        "tests/weir/spark/test_expressions.py",
        "tests/weir/spark/test_session.py",
        "tests/weir/spark/test_streams.py",
        "tests/workload/test_analysis.py",
        "tests/workload/test_benchmark_lines.py",
        "tests/workload/test_generate.py",
        "tests/workload/test_growth.py",
        "tests/workload/test_log_pictures.py",
        "tests/workload/test_nexmark.py",
        "tests/workload/test_plotting.py",
        "tests/workload/test_reading.py",
        "tests/workload/test_variants.py",
        "tests/workload/test_verify.py",
    ),
}
#: Their servers are their own.
_ALONE = {"tests/experiments/test_demo.py", "tests/services/test_commands.py"}
_GROUPS = {file: group for group, files in _TOGETHER.items() for file in files}
#: What takes longest begins first, so that no worker waits for the other one at the end; the others take half a minute
#: at most, those with the most tests first.
_LONGEST = (
    "Cassandra",
    "Spark",
    "Kafka",
    "tests/scenarios/test_recovery.py",
    "tests/scenarios/test_equal_jobs.py",
    "tests/scenarios/test_page.py",
    "tests/scenarios/test_rescale_losses.py",
    "tests/experiments/test_demo.py",
    "tests/benchmarks/test_commands.py",
    "tests/scenarios/test_package.py",
    "tests/scenarios/test_run_command.py",
    "tests/scenarios/test_slow_firing.py",
    "tests/scenarios/test_rescale.py",
    "tests/scenarios/test_windows.py",
    "tests/scenarios/test_queries.py",
    "tests/scenarios/test_backlog.py",
    "tests/benchmarks/test_checkpoints.py",
    "tests/scenarios/test_failures.py",
    "tests/scenarios/test_wide_states.py",
    "tests/scenarios/test_user_states.py",
    "tests/services/test_commands.py",
    "tests/scenarios/test_triggers.py",
    "tests/scenarios/test_damaged_checkpoints.py",
    "tests/scenarios/test_chaos.py",
    "tests/experiments/test_matrix.py",
    "tests/benchmarks/test_rescale.py",
    "tests/scenarios/test_pressure.py",
    "tests/scenarios/test_file_sinks.py",
    "tests/scenarios/test_join_kills.py",
    "tests/scenarios/test_broadcast_keyed.py",
    # Files with one or two tests, which would begin at the very end.
    "tests/experiments/test_fuzz.py",
    "tests/experiments/workflows/test_driver.py",
    "tests/log_broker/test_chaos.py",
    "tests/log_broker/test_etcd_record.py",
    "tests/log_broker/test_moves.py",
    "tests/scenarios/test_autoscaler.py",
    "tests/scenarios/test_standby.py",
)


_MARK = re.compile(r"\bmark\.(scenario|spark|service)\b")


def may_start_processes(path):
    """Whether a file, or the fixtures beside it, have a mark of such tests: all others take each worker 18 s."""
    texts = (each.read_text() for each in (path, path.with_name("conftest.py")) if each.exists())
    return any(map(_MARK.search, texts))


def group_of(node_id):
    """The name of what is run on one worker in one go: a file, or files that share a server."""
    file = node_id.partition("::")[0]
    return _GROUPS.get(file, file)


def is_missing(node_id):
    """Whether a test that needs a server belongs to no group, so that another worker may start a second one for it."""
    return group_of(node_id) == node_id.partition("::")[0] not in _ALONE


def rank(group):
    """Smaller ones begin earlier."""
    return _LONGEST.index(group) if group in _LONGEST else len(_LONGEST)


class _LongestFirst(OrderedDict):
    """Groups that no worker has begun."""

    def popitem(self, last=True):
        """The one that takes longest; of those of which nothing is known, the one with the most tests."""
        group = min(self, key=rank)
        return group, self.pop(group)


class LongestFilesFirst(LoadFileScheduling):
    """Keeps the tests of a file on one worker, in order, as ``--dist loadfile`` does."""

    def __init__(self, config, log):
        super().__init__(config, log)
        self.workqueue = _LongestFirst()

    def _split_scope(self, nodeid):
        return group_of(nodeid)
