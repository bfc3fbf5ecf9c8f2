"""Secrets for the chart: made once, complete, refused where something is missing; mounted files are read."""

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from dpdist import errors
from dpdist.cli.cluster import chart_settings, secret_manifests
from dpdist.ledger import keys
from dpdist.ledger.signing import KeyEncryptionKey

ENVIRONMENT = {
    "DPDIST_LEDGER": "postgresql+psycopg://dpdist:planted@db/ledger",
    "AWS_ACCESS_KEY_ID": "id",
    "AWS_SECRET_ACCESS_KEY": "key",
}


def test_a_namespace_and_six_secrets() -> None:
    made = secret_manifests(ENVIRONMENT, namespace="census")
    assert [manifest["kind"] for manifest in made] == ["Namespace"] + ["Secret"] * 6
    assert set(made[0]["metadata"]["labels"].values()) == {"restricted"}
    assert {manifest["metadata"]["namespace"] for manifest in made[1:]} == {"census"}
    content = {m["metadata"]["name"]: {k: base64.b64decode(v) for k, v in m["data"].items()} for m in made[1:]}
    assert content["dpdist-ledger"] == {"url": ENVIRONMENT["DPDIST_LEDGER"].encode()}
    assert content["dpdist-storage"] == {"access-key-id": b"id", "secret-access-key": b"key"}
    assert len(base64.b64decode(content["dpdist-kek"]["kek"])) == 32
    authorities = {content[f"dpdist-tls-{role}"]["ca.crt"] for role in ("scheduler", "worker", "client")}
    assert len(authorities) == 1
    authority = x509.load_pem_x509_certificate(authorities.pop())
    keys = set()
    for role in ("scheduler", "worker", "client"):
        secret = content[f"dpdist-tls-{role}"]
        x509.load_pem_x509_certificate(secret["tls.crt"]).verify_directly_issued_by(authority)
        keys.add(secret["tls.key"])
    assert len(keys) == 3


def test_the_key_encryption_key_cannot_be_replaced_by_mistake() -> None:
    first, second = (secret_manifests(ENVIRONMENT, kinds=["kek"])[0] for _ in range(2))
    assert first["immutable"]
    assert first["data"] != second["data"]
    assert "immutable" not in secret_manifests(ENVIRONMENT, kinds=["ledger"])[0]


@pytest.mark.parametrize(
    ("missing", "message"),
    [("DPDIST_LEDGER", "PostgreSQL"), ("AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"), ("AWS_SECRET_ACCESS_KEY", "--only")],
)
def test_what_is_missing_is_named(missing: str, message: str) -> None:
    with pytest.raises(errors.SpecError, match=message) as caught:
        secret_manifests({name: value for name, value in ENVIRONMENT.items() if name != missing})
    assert "planted" not in str(caught.value)


def test_a_ledger_that_pods_cannot_share() -> None:
    with pytest.raises(errors.SpecError, match="PostgreSQL"):
        secret_manifests({**ENVIRONMENT, "DPDIST_LEDGER": "sqlite:///ledger.db"})


def test_an_unknown_kind() -> None:
    with pytest.raises(errors.SpecError, match="tls, kek, ledger, storage"):
        secret_manifests(ENVIRONMENT, kinds=["certificates"])


def test_the_command_prints_manifests_and_says_what_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    kek = base64.b64encode(bytes(range(32))).decode()
    monkeypatch.setenv("DPDIST_KEK", kek)
    command = [sys.executable, "-m", "dpdist", "cluster", "secrets", "--only", "kek", "--prefix", "acs"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (secret,) = yaml.safe_load_all(done.stdout)
    assert secret["metadata"] == {"name": "acs-kek", "labels": {"app.kubernetes.io/part-of": "dpdist"}}
    assert base64.b64decode(secret["data"]["kek"]).decode() == kek
    assert done.stderr == "secrets acs-kek\n"


def test_a_new_key_can_be_fetched_as_the_command_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPDIST_KEK", raising=False)
    monkeypatch.delenv("DPDIST_KEK_FILE", raising=False)
    command = [sys.executable, "-m", "dpdist", "cluster", "secrets", "--only", "kek", "--namespace", "census"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (
        "export DPDIST_KEK=$(kubectl get secret --namespace census dpdist-kek -o jsonpath='{.data.kek}'" in done.stderr
    )


@pytest.mark.parametrize(
    ("endpoint", "ledger", "settings"),
    [
        ("", "postgresql+psycopg://dpdist:planted@db/ledger", []),
        (
            "http://10.0.0.1:7480",
            "postgresql+psycopg://dpdist:a@b:1/@db:15432/ledger?sslmode=verify-full",
            [
                "storage.endpointUrl=http://10.0.0.1:7480",
                "networkPolicy.storage.ports={7480}",
                "networkPolicy.ledger.ports={15432}",
            ],
        ),
        ("https://s3.example", "postgresql+psycopg://u:p@db:5432/ledger", ["storage.endpointUrl=https://s3.example"]),
        ("http://s3.example/", "", ["storage.endpointUrl=http://s3.example/", "networkPolicy.storage.ports={80}"]),
        ("https://user:planted@s3.example", "postgresql:///ledger", []),
    ],
)
def test_settings_of_the_chart_that_no_secret_holds(endpoint: str, ledger: str, settings: list[str]) -> None:
    assert chart_settings({"AWS_ENDPOINT_URL": endpoint, "DPDIST_LEDGER": ledger}) == settings
    assert chart_settings({"AWS_ENDPOINT_URL": endpoint, "DPDIST_LEDGER": ledger}, kinds=["kek"]) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file of root")
@pytest.mark.parametrize(
    ("mode", "read"), [(0o440, True), (0o640, True), (0o444, False), (0o460, False), (0o441, False)]
)
def test_a_secret_that_kubernetes_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, read: bool
) -> None:
    """Of root, readable by the group of the process, which is another user: so a volume with fsGroup looks."""
    path = tmp_path / "kek"
    path.write_text(base64.b64encode(bytes(32)).decode())
    path.chmod(mode)
    monkeypatch.setenv("DPDIST_KEK_FILE", str(path))
    monkeypatch.setattr(keys.os, "geteuid", lambda: 10001)
    if read:
        assert len(KeyEncryptionKey.find().secret) == 32
    else:
        with pytest.raises(errors.KeyUnavailable, match="may be read or written by others"):
            KeyEncryptionKey.find()


def test_ones_own_file_is_for_oneself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kek"
    path.write_text(base64.b64encode(bytes(32)).decode())
    path.chmod(0o640)
    monkeypatch.setenv("DPDIST_KEK_FILE", str(path))
    with pytest.raises(errors.KeyUnavailable, match="chmod 600"):
        KeyEncryptionKey.find()
