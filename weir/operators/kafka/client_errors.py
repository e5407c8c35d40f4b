"""What errors of the client say about the next attempt, as one line with the mend."""

from __future__ import annotations

from confluent_kafka import KafkaError

from weir.errors import FailureKind, InputError

_REFUSALS = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED)
_DENIALS = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)


def is_refusal(error: KafkaError) -> bool:
    """The brokers are there, and do not let this user in, or not do this."""
    return error.code() in _REFUSALS or error.code() in _DENIALS


def unreachable(who: str, bootstrap: str, error: KafkaError) -> InputError:
    """What to raise when Kafka does not do what is asked.

    Args:
        who: the step, for the message.
        bootstrap: addresses of brokers.
        error: of the client. Unless it is a refusal, the job begins again until Kafka is back.
    """
    where = f"{who}: Kafka at {bootstrap}"
    if error.code() in _REFUSALS:
        return InputError(
            f"{where} refuses the connection: {error.str()}; correct the user, password or certificates in properties"
        )
    if error.code() in _DENIALS:
        return InputError(f"{where} refuses: {error.str()}; grant the user of the job the right to do it")
    failure = InputError(f"{where} does not answer: {error.str()}; check the addresses, and that it runs")
    failure.failure_kind = FailureKind.OUTAGE
    return failure
