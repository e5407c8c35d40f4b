from __future__ import annotations

import socket

import pytest

from weir.errors import ConfigError, ConnectionLostError
from weir.spark.session import SparkFailedError, check_master, innermost_cause, spark_failures, told_cause


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "yarn", "k8s://https://example.org:443"])
def test_known_masters_pass(master: str):
    check_master(master)


@pytest.mark.parametrize(
    "master", ["", "locale", "local[0]", "localhost:7077", "spark://host:port", "spark://"]
)
def test_unknown_masters_are_refused(master: str):
    with pytest.raises(ConfigError, match="--master"):
        check_master(master)


def test_unreachable_master_is_found_at_once():
    with socket.socket() as held:
        # Bound and not listening: nobody else takes the port, and connections are refused.
        held.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ConnectionLostError, match=f"no Spark master answers at {master}"):
            check_master(master)


def test_listening_master_passes():
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_master(f"spark://127.0.0.1:{server.getsockname()[1]}")


def test_innermost_cause_is_picked():
    trace = "\n".join(
        [
            "An error occurred while calling o1.text.",
            ": org.apache.spark.SparkException: Job aborted",
            "\tat org.apache.spark.Foo",
            "Caused by: java.lang.RuntimeException: middle",
            "\t... 3 more",
            "Caused by: java.io.IOException: No space left on device",
        ]
    )
    assert innermost_cause(trace) == "java.io.IOException: No space left on device"
    assert innermost_cause("") == "no reason given"


def test_what_a_python_process_raised_is_one_line():
    trace = "\n".join(
        [
            "An error occurred while calling o1.getResult.",
            "Caused by: a.PythonException: An exception was thrown: Traceback (most recent call last):",
            '  File "tasks.py", line 1, in run',
            "    store.close()",
            "weir.errors.UserFunctionError: step 'each': process raised ValueError: thirteen",
            'row: {"k":"b"}',
            " SQLSTATE: 38000",
            "\tat org.apache.spark.Foo",
        ]
    )
    told = 'weir.errors.UserFunctionError: step \'each\': process raised ValueError: thirteen; row: {"k":"b"}'
    assert innermost_cause(trace) == told


def test_where_one_thread_of_spark_waited_for_another_the_trace_says_why():
    outer = "[UNCLASSIFIED_ERROR] Exception thrown in awaitResult: "
    trace = "\n".join(
        [
            f"org.apache.spark.SparkException: {outer}",
            "\tat org.apache.spark.Foo",
            "Caused by: java.io.FileNotFoundException: File file:/in/part-1 does not exist",
            "\tat org.apache.hadoop.Bar",
        ]
    )
    assert told_cause(outer, trace) == "java.io.FileNotFoundException: File file:/in/part-1 does not exist"
    assert told_cause(outer, "") == outer.strip()
    assert (
        told_cause("[PATH_NOT_FOUND] Path does not exist: in", trace)
        == "[PATH_NOT_FOUND] Path does not exist: in"
    )


def test_a_failed_start_says_the_exception_and_no_warning():
    said = 'WARNING: incubator\n\nException in thread "main" java.lang.RuntimeException: [unresolved: x]\n\tat a.B'
    assert innermost_cause(said) == "java.lang.RuntimeException: [unresolved: x]"


@pytest.mark.spark
def test_failure_of_a_query_is_one_line(spark, capfd):
    with pytest.raises(SparkFailedError, match="DIVIDE_BY_ZERO") as caught, spark_failures():
        spark.range(10).selectExpr("id / 0").collect()
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
