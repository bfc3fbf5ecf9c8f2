"""The proposed size of a cluster against the needs of the plan, and against the chart."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from charts import example, merge, need_tools, render
from typer.testing import CliRunner

from dpdist.cli.commands import app
from dpdist.errors import SpecError
from dpdist.families.base.calibration import GaussianPlan
from dpdist.families.base.cluster_size import DRIVER, ClusterSize, size_cluster
from dpdist.families.base.plan import Plan
from dpdist.families.base.registry import make_plan
from dpdist.privacy import accountant
from dpdist.privacy.events import Composed, Gaussian
from dpdist.spec.reader import load

RELEASES = Path(__file__).parents[2] / "deploy" / "releases"


def planned(name: str, rows: int, **settings: Any) -> Plan:
    return make_plan(load(RELEASES / f"{name}.yaml", {"data.minimum_records": rows, **settings}))


@pytest.fixture(scope="module")
def billion() -> Plan:
    return planned("census-100m", 10**9)


def test_workers_have_room_for_their_tasks_and_hold_the_codes(billion: Plan) -> None:
    needs, size = billion.needs(), size_cluster(billion)
    assert size.partitions == needs.partitions
    assert size.workers == 64
    assert size.memory << 30 > needs.task_bytes + needs.held_bytes / size.partitions
    assert needs.held_bytes <= size.workers * size.memory * 2**30 / 4  # so that they stay there between passes
    assert size.fits


@pytest.mark.parametrize(
    ("rows", "settings", "workers"),
    [(10**6, {}, 1), (10**8, {}, 16), (10**9, {"cluster.partitions": 24}, 4), (10**10, {}, 64)],
)
def test_workers_have_about_eight_partitions_each(rows: int, settings: dict[str, Any], workers: int) -> None:
    assert size_cluster(planned("acs2024", rows, **settings)).workers == workers


@pytest.mark.parametrize("name", ["acs2024-histograms", "eia", "acs2024-households"])
def test_every_kind_is_sized(name: str) -> None:
    size = size_cluster(make_plan(load(RELEASES / f"{name}.yaml")))
    assert size.workers == 1
    assert size.fits


def test_every_worker_that_mixes_holds_all_codes() -> None:
    """More workers do not make them smaller."""
    size = size_cluster(planned("adult-mixing", 10**9))
    assert size.memory << 30 > 2 * 15 * 10**9
    assert size.fits
    assert "TOO LARGE" not in size.explain()


def test_a_client_s_records_are_with_one_worker() -> None:
    need_tools()
    size = size_cluster(planned("adult-federated", 10**8))
    assert size.workers == 1
    assert size.memory << 30 > 2 * 15 * 10**8
    assert size.explain().startswith("Cluster     8 clients with a worker of 8 GiB, ")
    values = merge(example("federated"), integers(size.helm.removeprefix("--set ")))
    rendered = render(values)
    assert rendered.one("Deployment", "-workers")["spec"]["replicas"] == 0
    limits = rendered.one("Deployment", "-south")["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["memory"] == "8Gi"


def test_what_no_worker_can_hold_is_told() -> None:
    size = size_cluster(planned("mnist-mixing", 10**8))
    assert not size.fits
    assert size.to_json()["fits"] is False
    assert size.needed * 2**30 > 2 * 785 * 10**8
    assert f"TOO LARGE   each worker needs about {size.needed:,.0f} GiB" in size.explain()


def test_a_driver_that_publishes_many_cells_is_larger(billion: Plan) -> None:
    """A table of 2^24 cells, which the driver fits and publishes."""
    schema = {"attributes": [{"name": n, "kind": "integer", "bounds": [0, 4095]} for n in ("a", "b")]}
    tree = {
        "kind": "histogram",
        "name": "wide",
        "dataset": "wide",
        "schema": schema,
        "data": {"path": "t.parquet", "minimum_records": 10**6},
        "output": {"path": "out"},
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "histograms": [{"columns": ["a", "b"]}],
    }
    wide = make_plan(load(tree))
    size = size_cluster(wide)
    assert size.driver << 30 > wide.needs().driver_bytes > DRIVER << 29
    assert size.helm.endswith(f",driver.memory={size.driver}Gi")
    assert "driver" not in size_cluster(billion).helm


def test_the_chart_takes_the_line(billion: Plan) -> None:
    need_tools()
    import helm_python

    size = size_cluster(billion)
    flag, _, text = size.helm.partition(" ")
    assert flag == "--set"
    rendered = render(merge(example("job"), helm_python.parse_set_string(text) | integers(text)))
    workers = rendered.one("Deployment", "-workers")["spec"]
    assert workers["replicas"] == size.workers
    limit = workers["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert limit == f"{size.memory}Gi"
    arguments = rendered.one("Job")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"cluster.partitions={size.partitions}" in arguments


def integers(text: str) -> dict[str, Any]:
    """What --set gives for the line: numbers as numbers."""
    tree: dict[str, Any] = {}
    for item in text.split(","):
        path, value = item.split("=")
        merge(tree, nested(path.split("."), int(value) if value.isdigit() else value))
    return tree


def nested(names: list[str], value: Any) -> Any:
    return value if not names else {names[0]: nested(names[1:], value)}


def test_on_the_command_line() -> None:
    spec = [str(RELEASES / "acs2024-paper.yaml"), "--set", "synthesis.omega=all", "--cluster"]
    shown = CliRunner().invoke(app, ["plan", *spec])
    assert shown.exit_code == 0
    assert re.search(r"Helm\n--set dask.workers.replicas=\d+,dask.workers.memory=\d+Gi,release.settings", shown.stdout)
    tree = json.loads(CliRunner().invoke(app, ["plan", *spec, "--json"]).stdout)
    assert tree.keys() >= {"rows", "workers", "memory_gib", "partitions", "helm"}
    assert (
        ClusterSize(
            **{name: tree[name] for name in ("rows", "partitions", "workers", "clients")},
            memory=tree["memory_gib"],
            needed=tree["needed_gib"],
            driver=tree["driver_gib"],
        ).helm
        == tree["helm"]
    )


# --- The one Gaussian calibration of families, against the accountant


@pytest.mark.parametrize(("count", "sensitivity", "draws"), [(1, 1.0, 0), (3, 2.5, 10**6)])
def test_it_fills_the_budget_with_its_draws(count: int, sensitivity: float, draws: int) -> None:
    plan = GaussianPlan.of(epsilon=1.5, delta=1e-9, sensitivity=sensitivity, count=count, draws=draws, label="all")
    assert 1.4999 < accountant.epsilon(plan.event, delta=1e-9) <= 1.5
    assert plan.sigma == pytest.approx(sensitivity / plan.mu)
    assert (plan.event == Gaussian(plan.multiplier, count=count)) == (draws == 0)


def test_parts_compose_to_no_more_than_the_whole() -> None:
    plan, shares = GaussianPlan.of(epsilon=1.5, delta=1e-9), (0.2, 0.3, 0.5)
    parts = Composed(tuple(Gaussian(1 / plan.part(share)) for share in shares))
    assert math.fsum(plan.part(share) ** 2 for share in shares) < plan.mu**2
    assert accountant.epsilon(parts, delta=1e-9) <= 1.5


def test_draws_that_take_all_of_delta_are_refused() -> None:
    with pytest.raises(SpecError, match=r"privacy\.delta: .* set a delta of 9e-12 or more"):
        GaussianPlan.of(epsilon=1.0, delta=1e-13, draws=10**6)
