"""Certificates: what each is good for, and what a server trusts after they were replaced."""

import shutil
import ssl

import pytest

from weir.errors import ConfigError
from weir.security.certificates import initialise, now
from weir.security.roles import Role
from weir.security.tls_files import TlsFiles


class Time:
    now_s = 0.0

    def monotonic_s(self):
        return self.now_s


def shake(server, client, name):
    """Make two contexts shake hands, and send a byte each way, in memory."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    calling = client.wrap_bio(back, there, server_hostname=name)
    serving = server.wrap_bio(there, back, server_side=True)
    for _ in range(3):
        for each in (calling, serving):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                continue
    serving.write(b"x")
    assert calling.read(1) == b"x"
    return calling


@pytest.mark.parametrize("asks_certificate", [True, False])
def test_a_server_takes_another_authority_without_a_restart(tmp_path, asks_certificate):
    before, after, place = (tmp_path / name for name in ("before", "after", "place"))
    initialise(before, [], 2, now())
    initialise(after, [], 2, now())
    shutil.copytree(before, place)
    time, name = Time(), Role.TASK_MANAGER.server_name
    server = TlsFiles(place, Role.TASK_MANAGER, time).serving(asks_certificate=asks_certificate)
    old, new = (TlsFiles(each, Role.TASK_MANAGER, time).calling() for each in (before, after))
    shake(server, old, name)
    with pytest.raises(ssl.SSLError):
        shake(server, new, name)
    for file in after.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    time.now_s += 2
    shake(server, new, name)
    # One that trusts both: what it brings is of the authority that is gone.
    old.load_verify_locations(after / "ca.pem")
    if asks_certificate:
        with pytest.raises(ssl.SSLError):
            shake(server, old, name)
    else:
        shake(server, old, name)


def test_nobody_goes_on_with_an_earlier_session(tmp_path):
    """It would show no certificate, which may have been taken back since."""
    initialise(tmp_path / "made", [], 2, now())
    files = TlsFiles(tmp_path / "made", Role.TASK_MANAGER, Time())
    connected = shake(files.serving(), files.calling(), Role.TASK_MANAGER.server_name)
    assert not connected.session.has_ticket


def test_a_clients_certificate_serves_nobody(tmp_path):
    initialise(tmp_path / "made", ["weir.example"], 2, now())
    time = Time()
    browser = ssl.create_default_context(cafile=str(tmp_path / "made" / "ca.pem"))
    for role in Role:
        server = TlsFiles(tmp_path / "made", role, time).serving(asks_certificate=False)
        for name in ("localhost", "weir.example"):
            if role is Role.CLIENT:
                with pytest.raises(ssl.SSLCertVerificationError):
                    shake(server, browser, name)
            else:
                shake(server, browser, name)


@pytest.mark.parametrize("host", ["control-plane.weir.internal", "Client.Weir.Internal."])
def test_a_machine_cannot_have_the_name_of_a_role(tmp_path, host):
    with pytest.raises(ConfigError, match="tell a role"):
        initialise(tmp_path / "made", [host], 2, now())
