"""More listeners for a broker on 127.0.0.1: one with TLS and passwords, and one behind a proxy."""

import datetime as dt
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from services.kafka import HOST


def write_certificate(directory):
    """A certificate that signs itself, with its key for the broker; returns their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "weir test")])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
    for extension in (
        x509.BasicConstraints(ca=True, path_length=None),
        x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]),
    ):
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    directory.mkdir(parents=True)
    (directory / "certificate.pem").write_bytes(certificate)
    (directory / "broker.pem").write_bytes(private + certificate)
    return directory / "certificate.pem", directory / "broker.pem"


def broker_properties(port, secure_port, keystore, late_port, proxy_port):
    """Properties of a broker that listens at ``port`` as always, and at ``secure_port`` for user "weir".

    Also at ``late_port``, and tells clients from there that it listens at ``proxy_port``.
    """
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{port + 10},SASL_SSL://{HOST}:{secure_port},"
        f"LATE://{HOST}:{late_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port},SASL_SSL://{HOST}:{secure_port},LATE://{HOST}:{proxy_port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,LATE:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{module} required user_weir="right";',
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
    }


def client_properties(certificate, password="right"):
    """What a client of that listener needs."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "weir",
        "sasl.password": password,
        "ssl.ca.location": str(certificate),
    }
