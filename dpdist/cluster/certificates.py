"""Certificates for TLS between the processes of a Dask cluster.

A new authority signs a certificate for each role. Its key is then discarded, so that nobody can add a member later.
Dask does not compare host names, so one set serves any machine.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dpdist.errors import OutputExists, OutputUnwritable

ROLES = ("scheduler", "worker", "client")


def write_certificates(folder: Path, *, days: int = 365) -> None:
    """Write ``ca.pem`` and, for each of `ROLES`, ``ROLE.pem`` and ``ROLE-key.pem`` (mode 0600), valid for `days`.

    Raises OutputExists: the folder holds one of these files; OutputUnwritable: it cannot be written.
    """
    files = make_certificates(days=days)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        taken = [name for name in files if (folder / name).exists()]
        if taken:
            raise OutputExists(f"{folder} holds {taken[0]} already: choose another folder, or delete the old set")
        for name, content in files.items():
            handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if "-key" in name else 0o644)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
    except OSError as error:
        raise OutputUnwritable(f"the certificates cannot be written to {folder}: {error.strerror}") from None


def make_certificates(*, days: int = 365) -> dict[str, bytes]:
    """A new set in PEM format: ``ca.pem`` and, for each of `ROLES`, ``ROLE.pem`` and ``ROLE-key.pem``."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"dpdist {text}")])

    def usage(*, authority: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=not authority,
            key_cert_sign=authority,
            crl_sign=authority,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )

    def builder(subject: str, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
            .add_extension(usage(authority=authority), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        )

    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = builder("authority", ca_key, authority=True).sign(ca_key, hashes.SHA256())
    files = {"ca.pem": ca.public_bytes(serialization.Encoding.PEM)}
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    for role in ROLES:
        key = ec.generate_private_key(ec.SECP256R1())
        signed = builder(role, key, authority=False).add_extension(both, critical=False).sign(ca_key, hashes.SHA256())
        files[f"{role}.pem"] = signed.public_bytes(serialization.Encoding.PEM)
        files[f"{role}-key.pem"] = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    return files
