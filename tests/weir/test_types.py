"""Addresses: what is one, and what a resolver would take for something else."""

import pytest

from weir.errors import HandshakeError
from weir.rpc.wire import parse_address
from weir.types import is_host, is_wildcard, join_address


@pytest.mark.parametrize(
    "text",
    ["127.0.0.1:8018", "localhost:1", "tm_1.weir.svc.:65535", "[::1]:8018", "[fe80::1]:1", "WEIR-1:8018"],
)
def test_addresses_read_as_they_are_written(text):
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", ":8018", "host", "host:", "host:0", "host:65536", "host:8018x", "host:٨٠", "host:" + "9" * 5000, "::1:8018",
     "unix:/tmp/socket:80", "unix:80:1", "dns:///evil:80", "dns://1.1.1.1/evil:80", "http://host:80", "a b:80",
     "host\n:80", "host%2f:80", "[host]:80", "[::1:80", "-x:80", "user@host:80", "a" * 300 + ":80", "host:+80"],
)  # fmt: skip
def test_other_texts_are_no_addresses(text):
    with pytest.raises(HandshakeError, match="is not an address of the form host:port"):
        parse_address(text)


def test_hosts():
    assert all(map(is_host, ["a", "10.0.0.5", "::1", "[::1]"]))
    assert not any(map(is_host, ["", "a:1", "a/b", "[a]", ":", "unix:x"]))
    assert all(map(is_wildcard, ["0.0.0.0", "::", "[::]", "0:0::0"]))
    assert not any(map(is_wildcard, ["", "localhost", "127.0.0.1", "::1"]))
    assert (join_address("::1", 1), join_address("[::1]", 1), join_address("a", 1)) == (
        "[::1]:1",
        "[::1]:1",
        "a:1",
    )
