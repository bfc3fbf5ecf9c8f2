"""The commands of the compose file are the ones that work: its services and those of its heading, as local processes.

The test does what Docker does: variables are filled in, volumes are folders, names of services lead to the loopback.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import forkserver
import pytest
import yaml
from buckets import s3_server
from charts import ROOT
from ports import free_port

FILE = ROOT / "deploy" / "compose.yaml"
HEADING = FILE.read_text().split("name: dpdist")[0]


class House:
    """The services of the compose file."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        text = re.sub(r"\$\{(\w+)(?::[-?][^}]*)?\}", lambda found: variables.get(found[1], "none"), FILE.read_text())
        self.services: dict[str, Any] = yaml.safe_load(text)["services"]
        self.folder, self.scheduler = folder, f"127.0.0.1:{free_port()}"
        self._given = {"DPDIST_LEDGER": variables["LEDGER"], "AWS_ENDPOINT_URL": variables["ENDPOINT"]}
        self._running: list[subprocess.Popen[bytes]] = []
        for name in ("tls", "data", "spill"):
            (folder / name).mkdir()
        for path in (ROOT / "deploy" / "releases").glob("**/*.yaml"):
            copy = folder / "specs" / path.relative_to(ROOT / "deploy" / "releases")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(self.local(path.read_text()) if path.name == "compose.yaml" else path.read_text())

    def local(self, text: str) -> str:
        """A text with the places of this machine."""
        text = re.sub(r"(?<![\w/.])/(tls|data|spill|specs)\b", lambda found: f"{self.folder}/{found[1]}", text)
        return text.replace("scheduler:8786", self.scheduler).replace("127.0.0.1:8787", "127.0.0.1:0")

    def start(self, service: str, arguments: list[str], *more: str) -> subprocess.Popen[bytes]:
        """Start a command in a service."""
        given = self.services[service].get("environment") or {}
        environment = {name: self.local(self._given.get(name, value)) for name, value in given.items()}
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        command = [self.local(text) for text in arguments]
        if command[1:2] == ["scheduler"]:
            command[command.index("--port") + 1] = self.scheduler.rpartition(":")[2]
        log = (self.folder / f"{service}-{len(self._running)}.log").open("wb")
        self._running.append(
            forkserver.command(
                [*command, *more],
                env={"PATH": path, "LANG": "C.UTF-8", "HOME": str(self.folder), **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )
        )
        log.close()
        return self._running[-1]

    def run(self, service: str, arguments: list[str]) -> str:
        """Run a command in a service to its end; what it printed."""
        process = self.start(service, arguments)
        code = process.wait(600)
        logs = {path.name: path.read_text()[-3000:] for path in self.folder.glob("*.log")}
        assert code == 0, logs
        return logs[f"{service}-{len(self._running) - 1}.log"]

    def stop(self) -> None:
        """End everything that was started."""
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)


@pytest.fixture
def house(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with s3_server() as endpoint:
        variables = {"LEDGER": postgres_url, "ENDPOINT": endpoint, "S3_SECRET": "planted"}
        made = House(tmp_path, {**variables, "DPDIST_KEK": os.environ["DPDIST_KEK"]})
        yield made
        made.stop()


def test_the_commands_of_the_heading_release(house: House) -> None:
    prepare = house.services["prepare"]["command"]
    house.run("prepare", prepare)
    authority = (house.folder / "tls" / "ca.pem").read_bytes()
    house.run("prepare", prepare)  # when everything is started again
    assert (house.folder / "tls" / "ca.pem").read_bytes() == authority
    house.start("scheduler", house.services["scheduler"]["command"], "--host", "127.0.0.1")
    for _ in range(house.services["worker"]["deploy"]["replicas"]):
        house.start("worker", house.services["worker"]["command"])

    commands = [shlex.split(line) for line in re.findall(r"compose run --rm (dpdist .*)", HEADING)]
    assert [command[1] for command in commands] == ["sample", "ledger", "release", "verify"]
    said = [house.run("dpdist", command) for command in commands]
    assert "integrity only, 250,000 records" in said[-1]
    store = boto3.client(
        "s3", endpoint_url=house._given["AWS_ENDPOINT_URL"], aws_access_key_id="a", aws_secret_access_key="b"
    )
    keys = [entry["Key"] for entry in store.list_objects_v2(Bucket="census")["Contents"]]
    assert "demo/_manifest.json" in keys
