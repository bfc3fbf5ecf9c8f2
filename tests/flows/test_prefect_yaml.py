"""The deployments: what they name exists, no schedule is active, nothing secret is a parameter."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "deploy" / "prefect.yaml").read_text())["deployments"]


@pytest.fixture(params=DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def deployment(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


def test_pools() -> None:
    assert {d["name"]: d["work_pool"]["name"] for d in DEPLOYMENTS} == {
        "process": "dpdist",
        "federated": "dpdist",
        "kubernetes": "dpdist-kubernetes",
    }


@pytest.mark.usefixtures("prefect_home")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_flow_takes_the_parameters(deployment: dict[str, Any]) -> None:
    file, name = deployment["entrypoint"].split(":")
    assert (ROOT / file).exists()
    flow = getattr(import_module(file.removesuffix(".py").replace("/", ".")), name)
    assert set(deployment["parameters"]) <= set(inspect.signature(flow.fn).parameters)
    assert flow.validate_parameters(deployment["parameters"])
    assert (ROOT / deployment["parameters"]["spec"]).exists()


def test_schedules_are_inactive_and_runs_one_at_a_time(deployment: dict[str, Any]) -> None:
    assert deployment["schedules"]
    assert not any(schedule["active"] for schedule in deployment["schedules"])
    assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}
    assert deployment["enforce_parameter_schema"]


def test_kubernetes_does_not_repeat_what_spends_a_budget() -> None:
    variables = next(d for d in DEPLOYMENTS if d["name"] == "kubernetes")["work_pool"]["job_variables"]
    assert variables["backoff_limit"] == 0
