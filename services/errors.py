"""The error that commands of services print."""

from weir.errors import WeirError


class ServiceError(WeirError):
    """A service could not be started or stopped; the message names the cause and the mend."""
