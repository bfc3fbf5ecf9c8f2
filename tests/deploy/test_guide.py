"""The five commands for Kubernetes in the guide are the chart's and the command line's."""

import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
import yaml
from charts import EXAMPLES, ROOT, example, merge, need_tools, pod_specs, render
from typer.testing import CliRunner

from dpdist.cli.commands import app
from dpdist.spec.reader import load
from dpdist.spec.validation import parse_overrides


@pytest.fixture(scope="module")
def commands() -> list[list[str]]:
    """The five commands, as words; a pipe is a word."""
    section = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    block = section.split("```sh\n")[1].split("```")[0].replace("\\\n", " ")
    return [shlex.split(line) for line in block.splitlines() if line.strip()]


def test_they_are_five(commands: list[list[str]]) -> None:
    assert [line[0] for line in commands] == ["dpdist", "dpdist", "helm", "kubectl", "dpdist"]
    assert len({line[line.index("--namespace") + 1] for line in commands if "--namespace" in line}) == 1


@pytest.mark.parametrize("number", [0, 1, 4])
def test_the_commands_of_dpdist_are_there(commands: list[list[str]], number: int) -> None:
    words = commands[number][1:]
    words = words[: words.index("|")] if "|" in words else words
    names = [word for word in words[:2] if re.fullmatch("[a-z]+", word)]
    shown = CliRunner().invoke(app, [*names, "--help"])
    assert shown.exit_code == 0
    for word in words:
        if word.startswith("--"):
            assert word in shown.stdout, word


def test_helm_installs_a_job_that_kubectl_waits_for_and_dpdist_verifies(commands: list[list[str]]) -> None:
    need_tools()
    _, _, helm, kubectl, verify = commands
    assert helm[:4] == ["helm", "install", "acs", "helm/dpdist"]
    options = list(zip(helm[4::2], helm[5::2], strict=True))
    values: dict[str, Any] = {}
    for option, text in options:
        if option == "--values":
            merge(values, yaml.safe_load((ROOT / text).read_text()))
        elif option == "--set-file":
            path, _, file = text.partition("=")
            section, name = path.split(".")
            merge(values, {section: {name: (ROOT / file).read_text()}})
        else:
            assert option == "--namespace"
    rendered = render(values, release=helm[2], namespace=dict(options)["--namespace"])
    job = rendered.one("Job")

    selector = dict(item.split("=") for item in kubectl[kubectl.index("--selector") + 1].split(","))
    assert selector.items() <= job["metadata"]["labels"].items()
    assert "--for=condition=complete" in kubectl

    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["dpdist", "release", "/etc/dpdist/spec/release.yaml", "--once"]
    settings = parse_overrides(container["args"][1::2])
    assert verify[1:] == ["verify", settings["output.path"]]

    files = dict(text.split("=") for option, text in options if option == "--set-file")
    spec = load(ROOT / files["release.spec"])
    assert commands[1][1:4] == ["ledger", "create", spec.dataset]


def test_what_the_job_needs_is_what_the_first_command_makes(commands: list[list[str]]) -> None:
    need_tools()
    from dpdist.cli.cluster import secret_manifests

    environment = {
        "DPDIST_LEDGER": "postgresql+psycopg://h/d",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "key",
    }
    made = {
        manifest["metadata"]["name"]: set(manifest["data"])
        for manifest in secret_manifests(environment)
        if manifest["kind"] == "Secret"
    }
    for where, template in pod_specs(render(example("job"))):
        pod = template["spec"]
        for volume in pod["volumes"]:
            for source in volume.get("projected", {}).get("sources", []):
                assert {item["key"] for item in source["secret"]["items"]} <= made[source["secret"]["name"]], where
        for variable in pod["containers"][0]["env"]:
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            assert reference is None or reference["key"] in made[reference["name"]], where


# --- The manifests for those without Helm are the chart's


FOLDER = ROOT / "deploy" / "kubernetes"


@pytest.fixture(autouse=True)
def _tools() -> None:
    need_tools()


def test_they_are_in_step() -> None:
    command = [sys.executable, str(FOLDER / "render.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", EXAMPLES)
def test_they_are_what_helm_installs(name: str) -> None:
    """Read back as Kubernetes would read them."""
    assert [m for m in yaml.load_all((FOLDER / f"{name}.yaml").read_text(), yaml.CSafeLoader) if m] == render(
        example(name)
    ).manifests
