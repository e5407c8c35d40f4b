"""Random operations against a model: how many, and without a bound on their time."""

from hypothesis import HealthCheck, settings


def model_test(machine, max_examples, steps):
    """The test of a state machine of Hypothesis; a module gives it a name that begins with ``Test``."""
    case = machine.TestCase
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    case.settings = settings(
        max_examples=max_examples, stateful_step_count=steps, deadline=None, suppress_health_check=slow
    )
    return case
