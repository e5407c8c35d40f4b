"""What tests of ``python -m experiments`` share."""

import signal

import pytest

from experiments.__main__ import app


@pytest.fixture
def experiments(capsys):
    """Calls the command in this process: another one would import for 3 s. Returns exit code, output and errors."""

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            app([*arguments])
        return ended.value.code, *capsys.readouterr()

    # The command lets these end it as Ctrl-C does.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)
