"""Proofs that a caller knows the secret of a machine's processes; they go with each call of gRPC. Pure.

The secret itself is never sent: whoever has taken a port of Weir before Weir did would have it then. A proof is of use
for a minute.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

from weir.errors import HandshakeError
from weir.security.roles import Role

#: The key of the metadata that holds it.
PROOF_KEY = "weir-proof"
_AGE_S_MAX = 60
_KNOWN_MAX = 256
_LENGTH_MAX = 200


def _proof(secret: bytes, role: str, time_s: int) -> str:
    code = hmac.digest(secret, f"weir-proof-1 {role} {time_s}".encode(), hashlib.sha256)
    return f"{role} {time_s} {code.hex()}"


class Prover:
    """Makes proofs; any thread may ask. One is used for a second."""

    def __init__(self, secret: bytes, role: Role, now_s: Callable[[], float]) -> None:
        """``now_s``: wall clock, the same that the checking process reads."""
        self._secret, self._role, self._now_s = secret, role, now_s
        self._made: tuple[int, str] = (-1, "")

    def proof(self) -> str:
        """The one of this second."""
        time_s = int(self._now_s())
        made = self._made
        if made[0] != time_s:
            made = self._made = time_s, _proof(self._secret, self._role, time_s)
        return made[1]


class ProofChecker:
    """Checks proofs; any thread may ask."""

    def __init__(self, secret: bytes, now_s: Callable[[], float]) -> None:
        """``now_s``: wall clock."""
        self._secret, self._now_s = secret, now_s
        #: Proofs that were right, with their role and time; bounded.
        self._known: dict[str, tuple[Role, int]] = {}

    def role_of(self, proof: str) -> Role:
        """The role of the process that made a proof.

        Raises:
            HandshakeError: there is none, or it is wrong or too old; the text tells the mend.
        """
        known = self._known.get(proof) or self._checked(proof)
        age_s = self._now_s() - known[1]
        if not -_AGE_S_MAX <= age_s <= _AGE_S_MAX:
            raise HandshakeError(f"the proof of the secret is {age_s:.0f} s old: set the clocks right")
        return known[0]

    def _checked(self, proof: str) -> tuple[Role, int]:
        if not proof:
            raise HandshakeError(
                "the call proves no secret: it comes from a process that is none of this user's Weir"
            )
        parts = proof.split(" ") if len(proof) <= _LENGTH_MAX and proof.isascii() else []
        is_proof = len(parts) == 3 and parts[0] in set(Role) and parts[1].isdecimal() and len(parts[1]) < 16
        if not is_proof or not hmac.compare_digest(proof, _proof(self._secret, parts[0], int(parts[1]))):
            raise HandshakeError(
                "the caller has another secret: give all processes the same security.secret_file, or certificates "
                "(security.directory)"
            )
        known = Role(parts[0]), int(parts[1])
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[proof] = known
        return known
