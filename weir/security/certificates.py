"""A small certificate authority: what ``weir security init`` and ``weir security renew`` write.

The only module that needs ``cryptography``; it is imported when one of the commands runs.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from weir.clock import SystemClock
from weir.errors import ConfigError
from weir.security.private_files import private_directory, read_private, write_private
from weir.security.roles import ROLE_DOMAIN, Role
from weir.security.tls_files import AUTHORITY_FILE
from weir.security.tokens import TOKEN_FILES
from weir.types import is_host

AUTHORITY_KEY_FILE = "ca.key"
#: Clocks of other machines may be behind.
_BEFORE = dt.timedelta(minutes=5)
_AUTHORITY_DAYS = 3650
_TOKEN_BYTES = 32
#: Names that every certificate has, for browsers and programs of the same machine.
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

_Key = ec.EllipticCurvePrivateKey


def now() -> dt.datetime:
    """Return the wall clock."""
    return dt.datetime.fromtimestamp(SystemClock().now_us() / 1e6, dt.UTC)


def initialise(directory: Path, hosts: Sequence[str], days: int, at: dt.datetime) -> list[Path]:
    """Make an authority, a certificate for each role and two tokens; returns what was written.

    Args:
        directory: absent or empty.
        hosts: names and addresses of the machines, for HTTPS.
        days: how long certificates are valid; that of the authority: ten years.
        at: wall clock.

    Raises:
        ConfigError: there is an authority already, a host is none, or a file cannot be written.
    """
    _check(hosts, days)
    if (directory / AUTHORITY_KEY_FILE).exists() or (directory / AUTHORITY_FILE).exists():
        raise ConfigError(
            f"{directory} has an authority; to renew its certificates: weir security renew {directory}"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Weir {secrets.token_hex(4)}")])
    authority = (
        _builder(name, name, key, at, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = {AUTHORITY_KEY_FILE: _key_pem(key), AUTHORITY_FILE: authority.public_bytes(_PEM)}
    for file in TOKEN_FILES.values():
        files[file] = secrets.token_urlsafe(_TOKEN_BYTES).encode() + b"\n"
    return _write(directory, {**files, **_of_roles(authority, key, hosts, days, at, tuple(Role))})


def renew(
    directory: Path, hosts: Sequence[str], days: int, at: dt.datetime, roles: Sequence[Role] = tuple(Role)
) -> list[Path]:
    """Make new certificates of the same authority; running processes take them within seconds.

    Args:
        directory: of :func:`initialise`, with the authority's key.
        hosts: as of :func:`initialise`; empty: those that the certificates have now.
        days: how long they are valid.
        at: wall clock.
        roles: whose certificates.

    Raises:
        ConfigError: the authority is absent or damaged, a host is none, or a file cannot be written.
    """
    _check(hosts, days)
    try:
        authority = x509.load_pem_x509_certificate((directory / AUTHORITY_FILE).read_bytes())
        key = serialization.load_pem_private_key(
            read_private(directory / AUTHORITY_KEY_FILE, "weir security renew"), None
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{directory} has no authority that can be used ({error}); make one: weir security init {directory}"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{directory}: {AUTHORITY_KEY_FILE} is none of 'weir security init'")
    return _write(directory, _of_roles(authority, key, hosts or _hosts_of(directory), days, at, roles))


def _check(hosts: Sequence[str], days: int) -> None:
    for host in hosts:
        if not is_host(host):
            raise ConfigError(f"--host {host}: must be a host name or an IP address, without a port")
        if _tells_role(host):
            raise ConfigError(f"--host {host}: names that end with {ROLE_DOMAIN} tell a role; name a machine")
    if not 1 <= days <= _AUTHORITY_DAYS:
        raise ConfigError(f"--days {days}: must be from 1 to {_AUTHORITY_DAYS}")


def _tells_role(host: str) -> bool:
    return host.lower().removesuffix(".").endswith(ROLE_DOMAIN)


def _of_roles(
    authority: x509.Certificate,
    authority_key: _Key,
    hosts: Sequence[str],
    days: int,
    at: dt.datetime,
    roles: Sequence[Role],
) -> dict[str, bytes]:
    files = {}
    for role in roles:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"weir {role}")])
        names: list[x509.GeneralName] = [x509.DNSName(role.server_name)]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role is not Role.CLIENT:
            # Else whoever may read the log could take the place of the page, and of the tokens that people bring there.
            names += [_name(host) for host in dict.fromkeys((*_LOCAL_HOSTS, *hosts))]
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        certificate = (
            _builder(subject, authority.subject, key, at, days)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
            .sign(authority_key, hashes.SHA256())
        )
        files[f"{role}.key"] = _key_pem(key)
        files[f"{role}.pem"] = certificate.public_bytes(_PEM)
    return files


_PEM = serialization.Encoding.PEM


def _builder(
    subject: x509.Name, issuer: x509.Name, key: _Key, at: dt.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - _BEFORE)
        .not_valid_after(at + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: _Key) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)


def _hosts_of(directory: Path) -> list[str]:
    """Hosts of the certificates that are there."""
    hosts: dict[str, None] = {}
    for role in Role:
        try:
            certificate = x509.load_pem_x509_certificate((directory / f"{role}.pem").read_bytes())
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, x509.ExtensionNotFound):
            continue
        found = [str(each.value) for each in names if isinstance(each, x509.DNSName | x509.IPAddress)]
        hosts.update(dict.fromkeys(host for host in found if not _tells_role(host)))
    return list(hosts)


def _write(directory: Path, files: dict[str, bytes]) -> list[Path]:
    try:
        private_directory(directory)
        for name, content in files.items():
            write_private(directory / name, content)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or directory}: {error.strerror}; name another directory"
        ) from error
    return [directory / name for name in files]
