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
#: What the client asks where a handshake of TLS ends at once.
_WRONG_LISTENER = "broker listener?"
#: Said of a topic that was deleted, and by brokers that do not know it yet after a restart: the job waits for it.
ABSENT = (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
#: What no restart mends, besides refusals: what is said of it.
_WRONG = {
    KafkaError.TOPIC_EXCEPTION: "the topic cannot have this name; correct it",
    KafkaError._UNKNOWN_PARTITION: "the topic does not have this partition; correct the column with the partition",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "transaction_timeout_ms is more than the brokers take; lower it, or raise "
    "transaction.max.timeout.ms of the brokers",
    KafkaError.INVALID_RECORD: "a record is not what the topic takes; one that is compacted needs keys",
    # Also of two settings that do not go together.
    KafkaError._INVALID_ARG: "the client refuses a setting; correct properties",
    KafkaError.POLICY_VIOLATION: "the topic's rules do not allow it; change them, or what is written",
}


def is_refusal(error: KafkaError) -> bool:
    """The brokers are there, and do not let this user in, or not do this."""
    return error.code() in _REFUSALS or error.code() in _DENIALS


def is_wrong_password(error: KafkaError) -> bool:
    """The brokers do not let this user in. A refusal of TLS may also be a broker that died within the handshake."""
    return error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)


def more_telling(before: KafkaError | None, now: KafkaError) -> KafkaError:
    """Return which error of connections says why there is none: the later one, but for three cases.

    It says only that no broker is left; the earlier one is about the password; or it said why TLS
    failed, such as that only one side speaks it, and the later one says less of the next handshake.
    """
    if before is None:
        return now
    is_reason = before.code() == KafkaError._SSL or _WRONG_LISTENER in before.str()
    is_vague = now.code() == KafkaError._ALL_BROKERS_DOWN or (
        is_reason and "SSL_HANDSHAKE" in now.str() and _WRONG_LISTENER not in now.str()
    )
    return before if is_vague or is_wrong_password(before) else now


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
    if error.code() in _WRONG:
        return InputError(f"{where}: {_WRONG[error.code()]} ({error.str()})")
    failure = InputError(
        f"{where}: the topic is not there ({error.str()}); create it, or correct its name"
        if error.code() in ABSENT
        else f"{where} does not answer: {_guessed(error)}; check the addresses, and that it runs"
    )
    failure.failure_kind = FailureKind.OUTAGE
    return failure


def _guessed(error: KafkaError) -> str:
    """Return what the client says, and asks of a handshake that the other side ended, which it does not always do."""
    text: str = error.str()
    hung_up = error.code() == KafkaError._TRANSPORT and "SSL_HANDSHAKE" in text
    return (
        f"{text}: connecting to a PLAINTEXT {_WRONG_LISTENER}"
        if hung_up and _WRONG_LISTENER not in text
        else text
    )
