"""The image and the compose file: linted, pinned, in step with the lock, without privileges; and its commands work."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import boto3
import forkserver
import pytest
import yaml
from buckets import s3_server
from charts import ROOT, TOOLS, need_tools
from needs import left_out
from ports import free_port

DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """(instruction, rest) of the Dockerfile, lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.M).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


def locked(path: Path) -> dict[str, set[str]]:
    """Versions by name; some depend on the version of Python."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9._-]+)==([^ ]+)", path.read_text(), flags=re.M):
        found.setdefault(name, set()).add(version)
    return found


def test_hadolint_has_nothing_to_say(tmp_path: Path) -> None:
    need_tools()
    linter = TOOLS / "bin" / "hadolint"
    done = subprocess.run([linter, "--no-color", DOCKERFILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    worse = tmp_path / "Dockerfile"
    worse.write_text(DOCKERFILE.read_text() + "RUN apt-get install curl\n")
    assert subprocess.run([linter, worse], capture_output=True).returncode != 0


def test_what_is_copied_exists_and_is_sent() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "**"
    for instruction, rest in instructions():
        if instruction == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored or f"!{source.split('/')[0]}" in ignored, source


def test_the_wheel_is_built_of_what_the_image_copies(tmp_path: Path) -> None:
    """It holds one package, with the flows; Prefect finds them beside it."""
    copied = [rest.split() for name, rest in instructions() if name == "COPY"]
    for *sources, target in copied[1 : copied.index(["--from=build", "/opt/venv", "/opt/venv"])]:
        for source in sources:
            place = tmp_path / (source if target == "./" else target)
            place.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copy(ROOT / source, place)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    held = ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in held} == {"dpdist", f"dpdist-{wheel.name.split('-')[1]}.dist-info"}
    assert {"dpdist/flows/release.py", "dpdist/examples/demo.yaml"} <= set(held)
    environment = " ".join(rest for name, rest in instructions() if name == "ENV")
    assert ["flows", "/opt/dpdist/flows"] in copied
    assert "PYTHONPATH=/opt/dpdist " in environment


def test_the_base_is_pinned_and_one() -> None:
    args = [rest for name, rest in instructions() if name == "ARG"]
    assert len(args) == 1
    assert re.fullmatch(r"PYTHON=python:3\.11\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", args[0])
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    assert bases == ["${PYTHON}", "${PYTHON}"]


def test_the_image_ends_without_root_and_without_a_secret() -> None:
    users = [rest for name, rest in instructions() if name == "USER"]
    assert users == ["10001:10001"]
    last = [name for name, _ in instructions()]
    assert last.index("USER") > max(i for i, name in enumerate(last) if name in ("RUN", "COPY"))
    environment = " ".join(rest for name, rest in instructions() if name in ("ENV", "ARG"))
    assert not re.search("KEY|SECRET|TOKEN|PASSWORD", environment)


def test_only_hashed_packages_are_installed() -> None:
    for instruction, rest in instructions():
        if instruction == "RUN":
            for command in rest.split("&&"):
                if "pip install" in command or "pip sync" in command:
                    assert "--require-hashes" in command or "--no-deps" in command, command
    for lock in (DEPLOY / "image.lock", DEPLOY / "build.lock"):
        entries = [line for line in lock.read_text().splitlines() if re.match(r"^[a-z]", line)]
        assert entries
        assert lock.read_text().count("--hash=sha256:") >= len(entries)
        assert "://" not in re.sub(r"^ +--hash.*", "", lock.read_text(), flags=re.M)


def test_the_image_has_what_was_tested() -> None:
    """The versions of the image are those of the lock file that tests run with."""
    tested = locked(ROOT / "requirements.lock")
    for lock in (DEPLOY / "image.lock", DEPLOY / "build.lock"):
        image = locked(lock)
        differ = {
            name: (versions, tested[name])
            for name, versions in image.items()
            if not versions <= tested.get(name, versions)
        }
        assert not differ, "make lock"
    image = locked(DEPLOY / "image.lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = (
        project["dependencies"]
        + [text for extra in ("flows", "evaluate", "lineage") for text in project["optional-dependencies"][extra]]
        + (DEPLOY / "image.in").read_text().split("\n")
    )
    names = {re.split(r"[\[<>=~! ;]", text)[0] for text in asked if text and not text.startswith("#")}
    assert names <= set(image), "make lock"
    assert {"dask", "distributed", "prefect", "prefect-kubernetes", "psycopg", "asyncpg", "s3fs"} <= set(image)
    assert not {"pytest", "moto", "mypy", "hypothesis"} & set(image)


# Compose


def compose() -> dict[str, Any]:
    """The compose file with its variables filled in."""

    def value(found: re.Match[str]) -> str:
        return found[3] if found[2] == "-" else f"planted-{found[1].lower()}"

    text = re.sub(r"\$\{(\w+)(?::([-?])([^}]*))?\}", value, (DEPLOY / "compose.yaml").read_text())
    tree: dict[str, Any] = yaml.safe_load(text)
    return tree


def test_the_compose_file_is_one() -> None:
    need_tools()
    try:
        from compose_spec import PyCompose
    except ModuleNotFoundError:  # it is compiled for the Python that installed the tools
        left_out("tools for this Python", "make tools with it")

    tree = compose()
    assert PyCompose.from_yaml(yaml.safe_dump(tree)).to_spec()
    tree["services"]["worker"]["read_onyl"] = True
    with pytest.raises(ValueError, match="read_onyl"):
        PyCompose.from_yaml(yaml.safe_dump(tree))


def test_services_are_hardened_and_nothing_is_open_to_others() -> None:
    services = compose()["services"]
    for name, service in services.items():
        assert re.search(r":[\w.-]*\d", service["image"]) or service["image"] == "dpdist:local", name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
        if name in ("postgres", "s3"):
            continue
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        command = " ".join(service.get("command", []))
        if command.startswith("dask"):
            assert "/tls/ca.pem" in command, name
            assert "DPDIST_LEDGER" not in (service.get("environment") or {}), name
    assert "environment" not in services["scheduler"]


def test_every_secret_of_the_compose_file_must_be_given() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    for name in ("POSTGRES_PASSWORD", "S3_SECRET", "DPDIST_KEK"):
        assert f"${{{name}:?" in text
        assert not re.search(rf"{name}:-", text)


def test_the_spec_of_the_compose_file_is_where_its_services_are() -> None:
    from dpdist.spec.reader import load

    spec = load(DEPLOY / "releases" / "compose.yaml")
    services = compose()["services"]
    host, port = str(spec.cluster.address).removeprefix("tls://").split(":")
    assert host in services
    assert port in services[host]["command"]
    assert spec.cluster.workers == services["worker"]["deploy"]["replicas"]
    mounted = {volume.split(":")[1] for volume in services["dpdist"]["volumes"]}
    assert spec.cluster.security is not None
    for path in (str(spec.data.path), spec.cluster.security.ca, spec.cluster.security.key):
        assert any(path.startswith(folder + "/") for folder in mounted), path


# --- The commands of the compose file are the ones that work: its services and those of its heading, as local processes


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


@pytest.mark.slow
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
