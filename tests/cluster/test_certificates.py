"""Certificates: what is written, and that only their holders get into a cluster."""

import stat
from pathlib import Path
from typing import Any

import psutil
import pytest
from clusters import DaskProcesses, parts
from cryptography import x509
from releases import KEY, project
from typer.testing import CliRunner

from dpdist import errors
from dpdist.cli.cluster import cluster_app
from dpdist.cluster.certificates import ROLES, write_certificates
from dpdist.lifecycle.run import run_release


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates") / "set"
    write_certificates(folder)
    return folder


def section(folder: Path) -> dict[str, str]:
    return {"ca": str(folder / "ca.pem"), "cert": str(folder / "client.pem"), "key": str(folder / "client-key.pem")}


def test_every_role_has_a_certificate_of_the_authority_and_a_secret_key(certificates: Path) -> None:
    ca = x509.load_pem_x509_certificate((certificates / "ca.pem").read_bytes())
    assert stat.S_IMODE(certificates.stat().st_mode) == 0o700
    for role in ROLES:
        x509.load_pem_x509_certificate((certificates / f"{role}.pem").read_bytes()).verify_directly_issued_by(ca)
        assert stat.S_IMODE((certificates / f"{role}-key.pem").stat().st_mode) == 0o600
    assert not list(certificates.glob("*ca-key*"))


def test_the_command_says_how_to_use_them(tmp_path: Path) -> None:
    answer = CliRunner().invoke(cluster_app, ["certs", str(tmp_path / "tls"), "--days", "30"])
    assert answer.exit_code == 0
    assert "--tls-ca-file" in answer.output
    ca = x509.load_pem_x509_certificate((tmp_path / "tls" / "ca.pem").read_bytes())
    assert (ca.not_valid_after_utc - ca.not_valid_before_utc).days == 30
    again = CliRunner().invoke(cluster_app, ["certs", str(tmp_path / "tls")])
    assert isinstance(again.exception, errors.OutputExists)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.OutputUnwritable, match="cannot be written"):
        write_certificates(tmp_path / "file" / "tls")


def test_a_cluster_with_tls_runs_a_release_and_keeps_strangers_out(tmp_path: Path, certificates: Path) -> None:
    project(tmp_path)
    run_release(project(tmp_path, name="calm", output__path=str(tmp_path / "calm")), fixed_key=KEY)
    other = tmp_path / "other"
    write_certificates(other)
    cluster = DaskProcesses(tmp_path, certificates=certificates)
    cluster.start()
    try:
        place: dict[str, Any] = {"mode": "address", "address": cluster.address, "timeout": 180}
        spec = project(tmp_path, cluster=place | {"security": section(certificates)})
        run_release(spec, fixed_key=KEY)
        assert parts(tmp_path / "release") == parts(tmp_path / "calm")
        strangers = [{"security": section(other)}, {}, {"address": cluster.address.replace("tls", "tcp")}]
        for number, stranger in enumerate(strangers):
            change = {"name": f"stranger-{number}", "output__path": str(tmp_path / f"stranger-{number}")}
            with pytest.raises(errors.ClusterUnreachable, match=r"cluster\.security"):
                run_release(project(tmp_path, cluster=place | {"timeout": 3} | stranger, **change), fixed_key=KEY)
        listening = (c.laddr for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
        assert {place.ip for place in listening if place.port == cluster.port} == {"127.0.0.1"}
    finally:
        cluster.stop()


@pytest.mark.parametrize("wrong", ["missing", "no PEM"])
def test_files_that_are_no_certificates(wrong: str, tmp_path: Path) -> None:
    if wrong == "no PEM":
        for name in ("ca.pem", "client.pem", "client-key.pem"):
            (tmp_path / name).write_text("nothing")
    place = {"mode": "address", "address": "tls://127.0.0.1:9", "security": section(tmp_path)}
    with pytest.raises(errors.SpecError, match="dpdist cluster certs"):
        run_release(project(tmp_path, cluster=place))


def test_certificates_go_with_a_tls_address(tmp_path: Path) -> None:
    place = {"mode": "address", "address": "tcp://127.0.0.1:9", "security": section(tmp_path)}
    with pytest.raises(errors.SpecError, match="tls://"):
        project(tmp_path, cluster=place)
