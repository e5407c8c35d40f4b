"""Which requests the HTTP interface takes: a pure decision on method, path and headers."""

import pytest

from control_plane.web.guard import admission
from weir.config import ControlPlaneConfig

OURS = "localhost:9008"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:144.0) Gecko/20100101 Firefox/144.0"


def refusal(method, path, headers=None, **settings):
    headers = {"host": OURS, **(headers or {})}
    return admission(ControlPlaneConfig(**settings)).refusal(method, path, headers)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:9008", "127.0.0.1:1", "[::1]:9008", "[::1]", "10.0.0.5:9008", "weir.example"],
)
def test_own_names_are_taken_with_any_port(host):
    settings = {"host": "10.0.0.5", "advertised_host": "weir.example"}
    assert refusal("GET", "/status", {"host": host}, **settings) == ""


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:9008", "localhost.evil.example", "localhost@evil.example", "evil@localhost",
     "localhost:port", "[::1", "localhost/x", "0.0.0.0:9008", "10.0.0.5:9008"],
)  # fmt: skip
def test_other_names_are_refused_on_every_page(host):
    for method, path in [("GET", "/status"), ("POST", "/cancel"), ("GET", "/no/such/page")]:
        assert "controlPlane.allowed_hosts" in refusal(method, path, {"host": host})


def test_a_configured_host_is_taken():
    assert refusal("GET", "/status", {"host": "weir.example:80"}, allowed_hosts=("Weir.example",)) == ""
    assert refusal("GET", "/status", {"host": "anything"}, allowed_hosts=("*",)) == ""


def test_an_address_of_all_interfaces_is_no_name():
    settings = {"host": "0.0.0.0", "advertised_host": "10.0.0.5"}
    assert refusal("GET", "/status", {"host": "0.0.0.0:9008"}, **settings)
    assert refusal("GET", "/status", {"host": "10.0.0.5:9008"}, **settings) == ""


def test_a_program_needs_nothing():
    for method, path in [("POST", "/cancel"), ("GET", "/scale"), ("POST", "/savepoint")]:
        assert refusal(method, path, {"user-agent": "curl/8.5.0"}) == ""


CHANGING = [("POST", "/cancel"), ("POST", "/scale"), ("GET", "/scale"), ("GET", "/scale/"), ("POST", "/stop")]


@pytest.mark.parametrize(("method", "path"), CHANGING)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "https://localhost.evil.example"},
        {"origin": "null"},
        {"origin": ""},
        # Another server of the same machine is another site's page, too.
        {"origin": "http://localhost:3000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"user-agent": FIREFOX},
        {"user-agent": FIREFOX, "referer": "http://evil.example/page"},
        {"user-agent": FIREFOX, "referer": "http://[evil"},
    ],
)
def test_other_pages_change_nothing(method, path, headers):
    assert "controlPlane.allowed_origins" in refusal(method, path, headers)


@pytest.mark.parametrize(("method", "path"), CHANGING)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": f"http://{OURS}"},
        {"origin": f"http://{OURS}", "sec-fetch-site": "same-origin", "user-agent": FIREFOX},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {"user-agent": FIREFOX, "referer": f"http://{OURS}/docs"},
    ],
)
def test_own_pages_and_the_address_bar_may(method, path, headers):
    assert refusal(method, path, headers) == ""


def test_a_configured_origin_may():
    headers = {"origin": "https://dashboard.example", "sec-fetch-site": "cross-site"}
    for origins in (("https://dashboard.example/",), ("*",)):
        assert refusal("POST", "/cancel", headers, allowed_origins=origins) == ""


def test_a_link_from_another_page_leads_here():
    assert refusal("GET", "/status", {"sec-fetch-site": "cross-site", "user-agent": FIREFOX}) == ""
