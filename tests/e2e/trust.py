"""PostgreSQL and S3 with TLS, by certificates of an authority of one's own that the chart is told to trust."""

import datetime
import ipaddress
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from node import Node, expect
from servers import Processes, answers, wait_for

STORE = 7443
DATABASE = 15432
ROLE = "secured"
ONLY_TLS = f"hostnossl all {ROLE} all reject\n"


def trusted(node: Node) -> None:
    """A release whose ledger and store are reached by TLS only; without the authority it ends before a charge."""
    folder = Path(tempfile.mkdtemp())
    stunnel = Processes(node.folder)
    rules = Path(asked("show hba_file"))
    before = rules.read_text()
    try:
        with node.timed("tls: a release by TLS to PostgreSQL and S3"):
            certify(node.ip, folder)
            serve(node, folder, stunnel)
            asked(f"create role {ROLE} login password '{ROLE}' in role dpdist")
            rules.write_text(ONLY_TLS + before)
            asked("select pg_reload_conf()")
            url = f"url=postgresql+psycopg://{ROLE}:{ROLE}@{node.ip}:{DATABASE}/ledger"
            node.kubectl("create", "secret", "generic", "secured", f"--from-literal={url}")
            node.kubectl("create", "configmap", "authority", f"--from-file=ca.crt={folder / 'ca.pem'}")
            node.install("trusted", "trusted", **values(node, trust={"existingConfigMap": "authority"}))
            done, said = node.finish(node.newest_job("trusted"))
            expect(done, said)
        with node.timed("tls: an authority that is not trusted"):
            node.install("trusted", "untrusted", **values(node))
            done, said = node.finish(node.newest_job("trusted"))
            print("    " + said.strip().splitlines()[-1])
            expect(not done and "certificate" in said.lower() and "Traceback" not in said, said)
    finally:
        rules.write_text(before)
        asked("select pg_reload_conf()")
        asked(f"drop role if exists {ROLE}")
        stunnel.stop()
        shutil.rmtree(folder)
    node.released("trusted")
    expect(not node.charges("untrusted"), "a charge without a store")
    node.helm("uninstall", "trusted")


def values(node: Node, **more: Any) -> dict[str, Any]:
    """Values of the chart for a store behind TLS; the ledger's URL stays as it is."""
    given = node.values("")
    policy = given["networkPolicy"]
    return {
        "storage": {**given["storage"], "endpointUrl": f"https://{node.ip}:{STORE}"},
        "networkPolicy": {**policy, "storage": {**policy["storage"], "ports": [STORE]}},
        "secrets": {"ledger": {"existingSecret": "secured", "key": "url"}},
        **more,
    }


def certify(ip: str, folder: Path) -> None:
    """An authority (ca.pem), and a certificate of it for an address (cert.pem, key.pem), which PostgreSQL may read."""
    authority, own = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority of the house")])
    now = datetime.datetime.now(datetime.UTC)

    def build(subject: x509.Name, key: Any) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
        return builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))

    ca = build(issuer, authority.public_key()).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    (folder / "ca.pem").write_bytes(ca.add_extension(usage, True).sign(authority, SHA256()).public_bytes(Encoding.PEM))
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "servers")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(ip))])
    certificate = build(subject, own.public_key()).add_extension(names, False).sign(authority, SHA256())
    (folder / "cert.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    key = folder / "key.pem"
    key.touch(0o600)
    key.write_bytes(own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for path in (folder, *folder.iterdir()):
        shutil.chown(path, "postgres")


def serve(node: Node, folder: Path, stunnel: Processes) -> None:
    """Give PostgreSQL the certificate, and the store an address with TLS before it."""
    for setting, value in {
        "ssl_cert_file": folder / "cert.pem",
        "ssl_key_file": folder / "key.pem",
        "ssl": "on",
    }.items():
        asked(f"alter system set {setting} = '{value}'")
    if not shutil.which("stunnel"):
        apt = [
            "apt-get",
            "-o",
            "Acquire::Retries=5",
            "-o",
            "DPkg::Lock::Timeout=300",
            "install",
            "-y",
            "-qq",
            "stunnel4",
        ]
        subprocess.run(
            apt, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        )
    settings = folder / "stunnel.conf"
    settings.write_text(
        f"foreground = yes\npid =\n[store]\naccept = {node.ip}:{STORE}\nconnect = {node.ip}:7480\n"
        f"cert = {folder / 'cert.pem'}\nkey = {folder / 'key.pem'}\n"
    )
    stunnel.start("stunnel", "stunnel", settings)
    wait_for("the store", answers(f"http://{node.ip}:7480/"), seconds=30, alive=stunnel.alive)


def asked(question: str) -> str:
    """What PostgreSQL answers its administrator."""
    line = [
        "psql",
        "--host",
        "127.0.0.1",
        "--port",
        str(DATABASE),
        "--username",
        "postgres",
        "--tuples-only",
        "--no-align",
    ]
    return subprocess.run([*line, "--command", question], check=True, capture_output=True, text=True).stdout.strip()
