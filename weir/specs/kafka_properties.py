"""Settings that are passed on to a client and may have secrets among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class ClientProperties(Mapping[str, str]):
    """Settings of the client library. Passwords may be among them: plans and fingerprints show none of them."""

    def __init__(self, properties: Mapping[str, object] | None = None) -> None:
        self._properties = {str(name): str(value) for name, value in (properties or {}).items()}

    def __getitem__(self, name: str) -> str:
        return self._properties[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._properties)

    def __len__(self) -> int:
        return len(self._properties)

    def __hash__(self) -> int:
        return hash(frozenset(self._properties.items()))

    def __repr__(self) -> str:
        return f"ClientProperties({', '.join(sorted(self._properties))})"
