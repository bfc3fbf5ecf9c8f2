"""The deployments, registered by Prefect's own command at a real server: what runs, where, when, with what.

The pool of type kubernetes has the job template of the Helm chart; the server checks variables against it, and
Prefect's own templating makes the Job from it.
"""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "prefect.yaml"
MANIFESTS = ROOT / "deploy" / "kubernetes" / "prefect.yaml"
DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())["deployments"]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def chart(name: str) -> str:
    """A file that the chart gives to its Prefect worker."""
    found = [document for document in yaml.safe_load_all(MANIFESTS.read_text()) if document["kind"] == "ConfigMap"]
    (content,) = [entry["data"][name] for entry in found if name in entry["data"]]
    return str(content)


@pytest.fixture(params=DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def deployment(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


def give_template(folder: Path, environment: dict[str, str]) -> None:
    """What the chart's Prefect worker runs before it starts."""
    objects = list(yaml.safe_load_all(MANIFESTS.read_text()))
    (pod,) = [
        o["spec"]["template"]["spec"]
        for o in objects
        if o["metadata"]["name"].endswith("-prefect") and o["kind"] == "Deployment"
    ]
    (container,) = pod["initContainers"]
    file = folder / "base-job-template.json"
    file.write_text(chart(file.name))
    command = [text.replace("/etc/dpdist/prefect", str(folder)) for text in container["command"] + container["args"]]
    environment = {**environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def registered(prefect_home: tuple[Path, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The deployments as the server has them, by flow and name; those of the chart as ``chart/…``."""
    from prefect import get_client
    from prefect.cli import app
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.settings import PREFECT_API_URL

    theirs = tmp_path_factory.mktemp("chart") / "prefect.yaml"
    content = yaml.safe_load(chart("prefect.yaml"))
    (content["deployments"][0]["name"],) = ("chart" for one in content["deployments"] if one["name"] == "kubernetes")
    theirs.write_text(yaml.safe_dump(content))
    give_template(theirs.parent, {**os.environ, "PREFECT_API_URL": PREFECT_API_URL.value()})
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="dpdist", type="process"))
        with (
            chdir(ROOT),
            pytest.MonkeyPatch.context() as patch,
        ):  # Prefect's command, in the process that has it already
            patch.setenv("DPDIST_HOME", str(ROOT))
            for file in (FILE, theirs):
                patch.setattr(sys, "argv", ["prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)])
                with suppress(SystemExit):
                    app()
        yield {deployment.name: deployment for deployment in client.read_deployments()}


def test_the_server_takes_them_as_they_are(registered: dict[str, Any], deployment: dict[str, Any]) -> None:
    found = registered[deployment["name"]]
    assert found.work_pool_name == {"kubernetes": "dpdist-kubernetes"}.get(deployment["name"], "dpdist")
    assert found.parameters == deployment["parameters"]
    assert found.enforce_parameter_schema
    assert found.job_variables == {}
    expected = [(True, "30 6 * * *")] if deployment["name"] == "ledger" else [(False, "0 3 1 * *")]  # it spends nothing
    assert [(schedule.active, schedule.schedule.cron) for schedule in found.schedules] == expected
    assert found.global_concurrency_limit.limit == 1
    assert found.concurrency_options.collision_strategy == "ENQUEUE"
    (step,) = found.pull_steps
    folder = {"kubernetes": "/opt/dpdist"}.get(deployment["name"], str(ROOT))
    assert step == {"prefect.deployments.steps.set_working_directory": {"directory": folder}}


def test_parameters_are_those_of_the_flow(registered: dict[str, Any], deployment: dict[str, Any]) -> None:
    file, name = registered[deployment["name"]].entrypoint.split(":")
    flow = getattr(import_module(file.removesuffix(".py").replace("/", ".")), name)
    assert set(deployment["parameters"]) <= set(inspect.signature(flow.fn).parameters)
    assert flow.validate_parameters(deployment["parameters"])
    fields = registered[deployment["name"]].parameter_openapi_schema["properties"]
    assert [name for name, field in fields.items() if not field.get("description")] == []
    assert ("plan_only" in fields) == (flow.name == "release")
    spec = deployment["parameters"].get("spec")
    if spec is not None:
        assert spec == "release.yaml" if deployment["name"] == "kubernetes" else (ROOT / spec).exists()


def test_the_server_refuses_other_parameters(registered: dict[str, Any]) -> None:
    from prefect import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    with get_client(sync_client=True) as client, pytest.raises(PrefectHTTPStatusError, match=r"409|422"):
        client.create_flow_run_from_deployment(registered["process"].id, parameters={"spec": 7})


def test_a_pool_that_exists_gets_the_template_of_an_upgrade(registered: dict[str, Any], tmp_path: Path) -> None:
    from prefect import get_client
    from prefect.client.schemas.actions import WorkPoolUpdate
    from prefect.settings import PREFECT_API_URL

    with get_client(sync_client=True) as client:
        stale = json.loads(chart("base-job-template.json").replace("registry.example/dpdist:", "registry.example/old:"))
        change = WorkPoolUpdate(base_job_template=stale, is_paused=True, concurrency_limit=3)
        client.update_work_pool("dpdist-kubernetes", change)
        give_template(tmp_path, {**os.environ, "PREFECT_API_URL": PREFECT_API_URL.value()})
        pool = client.read_work_pool("dpdist-kubernetes")
        assert pool.base_job_template == json.loads(chart("base-job-template.json")) != stale
        assert (pool.is_paused, pool.concurrency_limit, pool.type) == (True, 3, "kubernetes")


def test_a_run_on_kubernetes_cannot_choose_its_image_or_its_secrets(registered: dict[str, Any]) -> None:
    from prefect import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    for name in ("kubernetes", "chart"):
        for variable, value in {"image": "elsewhere/image", "env": {"DPDIST_KEK": "x"}}.items():
            with get_client(sync_client=True) as client, pytest.raises(PrefectHTTPStatusError, match="422"):
                client.create_flow_run_from_deployment(registered[name].id, job_variables={variable: value})


@pytest.mark.parametrize("name", ["kubernetes", "chart"])
def test_the_job_on_kubernetes_is_not_repeated_and_has_its_secrets(registered: dict[str, Any], name: str) -> None:
    from prefect import get_client
    from prefect.utilities.templating import apply_values

    with get_client(sync_client=True) as client:
        pool = client.read_work_pool(registered[name].work_pool_name)
    values = {**registered[name].job_variables, "command": "prefect flow-run execute", "name": "run"}
    job = apply_values(pool.base_job_template["job_configuration"], values)["job_manifest"]
    assert job["spec"]["backoffLimit"] == 0
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    assert "{{" not in json.dumps(job)
    environment = {entry["name"]: entry for entry in container["env"]}
    assert environment["DPDIST_KEK_FILE"]["value"] == "/run/secrets/dpdist/kek"
    assert "/run/secrets/dpdist" in [mount["mountPath"] for mount in container["volumeMounts"]]
    for secret in ("DPDIST_LEDGER", "AWS_SECRET_ACCESS_KEY"):
        assert "value" not in environment[secret]
    assert json.loads(environment["DPDIST_PINNED"]["value"])["cluster.mode"] == "address"
    assert "cluster.mode" not in registered["chart"].parameters["settings"]
