"""The simulation against arithmetic, the calibration against known costs, the proposal against plan and chart."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from charts import example, merge, need_tools, render
from hypothesis import given
from hypothesis import strategies as st
from releases import project
from typer.testing import CliRunner

from dpdist import errors
from dpdist.cli.commands import app
from dpdist.families.base.family import Plan
from dpdist.families.base.registry import build_spec, load_spec, make_plan
from dpdist.families.base.workload import Layout
from dpdist.sizing.calibration import STAGES, Measured, calibrate
from dpdist.sizing.cluster_size import MEASURED, WORKERS, predict, read_costs, size_cluster
from dpdist.sizing.simulation import LIMITS, Costs, Load, simulate

RELEASES = Path(__file__).parents[2] / "deploy" / "releases"
FREE = Costs.from_json(dict.fromkeys(MEASURED.to_json(), 0.0))
SLOW = Costs(
    start=5.3,
    worker=0.4,
    stage=0.27,
    task=2.4e-3,
    byte=3.0e-9,
    read=1.4e-8,
    increment=3.25e-8,
    table=7.9e-9,
    cell=1.0e-6,
    key=4.7e-8,
    candidate=4.9e-8,
    write=2.6e-8,
)
"""A machine on which work counts for more than what every worker must have first."""


@pytest.fixture(scope="module")
def billion() -> Plan:
    return make_plan(load_spec(RELEASES / "census-100m.yaml", {"data.minimum_records": 10**9}))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return make_plan(project(tmp_path_factory.mktemp("small"), rows=30_000))


# Simulation


@given(tasks=st.integers(1, 40), workers=st.integers(1, 12), seconds=st.floats(0.01, 10))
def test_equal_tasks_run_in_waves(tasks: int, workers: int, seconds: float) -> None:
    run = simulate([Load(name="a", tasks=tasks, seconds=seconds)], FREE, workers=workers)
    assert run.seconds == pytest.approx(math.ceil(tasks / workers) * seconds)


@given(tasks=st.integers(1, 300), workers=st.integers(1, 64), seconds=st.floats(0, 0.1), task=st.floats(0.001, 0.1))
def test_no_run_beats_its_work_or_its_scheduler(tasks: int, workers: int, seconds: float, task: float) -> None:
    run = simulate([Load(name="a", tasks=tasks, seconds=seconds)], replace(FREE, task=task), workers=workers)
    assert run.seconds >= max(tasks * task, tasks * seconds / workers) - 1e-9
    assert run.seconds <= tasks * (task + seconds) + 1e-9


def test_a_scheduler_that_cannot_follow_is_the_limit() -> None:
    load, costs = Load(name="a", tasks=1_000, seconds=0.1), replace(FREE, task=0.01)
    few, many = (simulate([load], costs, workers=n) for n in (2, 200))
    assert few.limit == "workers"
    assert few.seconds == pytest.approx(50, rel=0.01)
    assert many.limit == "scheduler"
    assert many.seconds == pytest.approx(10.1, rel=0.01)


def test_a_tree_of_sums() -> None:
    """Nine summaries, three at a time: sums of two fetched summaries on each of two levels."""
    costs = replace(FREE, byte=1e-3)
    load = Load(name="a", tasks=9, seconds=1.0, summary=1_000, fan_in=3)
    assert simulate([load], costs, workers=9).seconds == pytest.approx(1 + 2 * 2)
    assert simulate([load], costs, workers=1).seconds == pytest.approx(9 + 2 * 2, abs=6.1)
    assert simulate([load], costs, workers=9).limit == "sums"
    assert simulate([replace(load, tasks=1)], costs, workers=9).seconds == pytest.approx(1)


def test_workers_that_share_cores() -> None:
    load = Load(name="a", tasks=16, seconds=1.0)
    seconds = [simulate([load], FREE, workers=n, cores=2).seconds for n in (1, 2, 4, 8)]
    assert seconds == pytest.approx([16, 10, 9, 8.5])  # the driver takes half a core
    alone = replace(load, tasks=1)
    assert [simulate([alone], FREE, workers=n, cores=2).seconds for n in (1, 2, 8)] == [1, 1, 1]  # no one else is busy
    summed = replace(load, seconds=0.0, summary=1_000)
    costs = replace(FREE, byte=1e-3)
    one, eight = (simulate([summed], costs, workers=n, cores=2).seconds for n in (1, 8))
    assert one == pytest.approx(15)  # sums of seven, of seven and of one
    assert eight == pytest.approx((7 + 1) * 4.25)
    costs = replace(FREE, start=3.0, worker=1.0)
    assert [simulate([], costs, workers=n, cores=2).seconds for n in (1, 2, 4)] == pytest.approx([4, 4.25, 5.25])
    assert simulate([], costs, workers=2).seconds == pytest.approx(3)  # they run already


def test_what_every_worker_must_have_first() -> None:
    costs = replace(FREE, byte=1e-3)
    load = Load(name="a", tasks=1, seconds=0.0, spread=1_000)
    assert [simulate([load], costs, workers=n).seconds for n in (1, 3, 7, 8)] == pytest.approx([1, 2, 3, 4])


# Calibration


def test_costs_are_found_again_from_two_runs(small: Plan) -> None:
    plan = small
    true = replace(
        MEASURED, read=2e-5, increment=3e-6, table=4e-6, key=3e-5, candidate=2e-5, write=1e-5, start=3.0, worker=1.5
    )

    def run(workers: int) -> Measured:
        layout = Layout(workers=workers, memory=8, partitions=16)
        made = predict(plan, layout, costs=true, cores=2)
        return Measured(layout=layout, cores=2, seconds=made.seconds, stages=made.stages)

    by_themselves = {name: getattr(true, name) for name in ("worker", "stage", "task", "byte")}
    found = calibrate(plan, [run(1), run(2)], **by_themselves)
    assert found.to_json() == pytest.approx(true.to_json(), rel=0.02)
    four = Layout(workers=4, memory=8, partitions=16)
    assert predict(plan, four, costs=found, cores=2).seconds == pytest.approx(run(4).seconds, rel=0.02)
    with pytest.raises(ValueError, match="at least one run"):
        calibrate(plan, [], **by_themselves)


def test_every_stage_that_a_run_records_has_a_cost(small: Plan) -> None:
    from dpdist.release.run import run_release

    outcome = run_release(small.spec)
    record = json.loads(Path(outcome.run_record).read_text())["seconds"]
    assert set(record) == set(STAGES) - {"fitting"}
    assert set(STAGES.values()) < set(MEASURED.to_json())
    layout = Layout(workers=1, memory=8, partitions=4)
    assert set(predict(small, layout).stages) == set(record)


# Proposal


def test_a_billion_rows_from_one_to_512_workers(billion: Plan) -> None:
    sizing = size_cluster(billion, costs=SLOW)
    assert [p.workers for p in sizing.predictions] == list(WORKERS)
    seconds = [p.seconds for p in sizing.predictions]
    assert all(later <= earlier * 1.01 for earlier, later in pairwise(seconds))
    assert sizing.ends is not None
    assert sizing.proposed.workers <= sizing.ends.workers
    assert {p.limit for p in sizing.predictions} <= set(LIMITS)
    assert sizing.predictions[0].limit == "workers"
    assert sizing.predictions[-1].limit != "workers"
    text = sizing.explain()
    assert f"Beyond {sizing.ends.workers} workers it stops scaling" in text
    assert text.endswith(sizing.helm)


def test_slow_work_scales_further(billion: Plan) -> None:
    slow = replace(MEASURED, read=MEASURED.read * 50)
    quick, dear = size_cluster(billion), size_cluster(billion, costs=slow)
    assert dear.proposed.workers > quick.proposed.workers
    assert dear.seconds > quick.seconds


def test_a_worker_has_room_for_its_tasks(billion: Plan) -> None:
    needs = billion.resources()
    sizing = size_cluster(billion)
    for layout in sizing.layouts:
        assert layout.memory << 30 > needs["task_bytes"] + needs["encoded_bytes"] / layout.partitions
    total = sizing.proposed.workers * sizing.proposed.memory << 30
    assert needs["encoded_bytes"] <= total / 4  # so that the codes stay there from pass to pass


def test_a_large_index_of_seeds_gets_the_memory_that_it_is_worth() -> None:
    """Or the smaller workers that suffice for the codes would make many workers slower than few."""
    settings = {"data.minimum_records": 10**9, "cluster.partitions": 240}
    sizing = size_cluster(make_plan(load_spec(RELEASES / "acs2024-paper.yaml", settings)), costs=SLOW)
    assert {layout.partitions for layout in sizing.layouts} == {240}  # as declared
    seconds = [p.seconds for p in sizing.predictions]
    assert all(later <= earlier * 1.01 for earlier, later in pairwise(seconds))
    assert sizing.ends is not None
    assert sizing.ends.limit == "scheduler"


@pytest.mark.parametrize("name", ["acs2024-histograms", "eia"])
def test_other_kinds_of_release_are_sized_by_one_pass(name: str) -> None:
    sizing = size_cluster(make_plan(load_spec(RELEASES / f"{name}.yaml")))
    assert not sizing.whole
    assert sizing.proposed.workers >= 1
    assert "for one pass over the table" in sizing.explain()


def test_every_worker_that_mixes_holds_all_codes() -> None:
    """More workers do not make them smaller."""
    sizing = size_cluster(make_plan(load_spec(RELEASES / "adult-mixing.yaml", {"data.minimum_records": 10**9})))
    codes = 15 * 10**9
    assert all(layout.memory << 30 > 2 * codes for layout in sizing.layouts)
    assert sizing.fits
    assert "TOO LARGE" not in sizing.explain()


def test_a_client_s_records_are_with_one_worker() -> None:
    need_tools()
    sizing = size_cluster(make_plan(load_spec(RELEASES / "adult-federated.yaml", {"data.minimum_records": 10**8})))
    assert [layout.workers for layout in sizing.layouts] == [1]
    assert sizing.proposed.memory << 30 > 2 * 15 * 10**8
    assert sizing.explain().startswith("Cluster     8 clients with a worker of 8 GiB, ")
    values = merge(example("federated"), integers(sizing.helm.removeprefix("--set ")))
    rendered = render(values)
    assert rendered.one("Deployment", "-workers")["spec"]["replicas"] == 0
    limits = rendered.one("Deployment", "-south")["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["memory"] == "8Gi"


def test_what_no_worker_can_hold_is_told() -> None:
    sizing = size_cluster(make_plan(load_spec(RELEASES / "mnist-mixing.yaml", {"data.minimum_records": 10**8})))
    assert not sizing.fits
    assert sizing.to_json()["fits"] is False
    assert sizing.needed * 2**30 > 2 * 785 * 10**8
    assert f"TOO LARGE   each worker needs about {sizing.needed:,.0f} GiB" in sizing.explain()


@pytest.fixture(scope="module")
def wide() -> Plan:
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
    return make_plan(build_spec(tree))


def test_pairs_are_not_asked_for_where_none_is_counted() -> None:
    """Ten thousand values by ten thousand: too many cells for a count of pairs."""
    schema = {"attributes": [{"name": n, "kind": "integer", "bounds": [0, 9_999]} for n in ("a", "b")]}
    tree = {
        "kind": "plausible-deniability",
        "name": "apart",
        "dataset": "apart",
        "schema": schema,
        "data": {"path": "t.parquet", "minimum_records": 10**7},
        "output": {"path": "out"},
        "privacy": {"model": {"epsilon": 1, "delta": 1e-9}},
        "model": {"structure": "independent"},
        "split": {"structure": 0, "parameters": 1, "seeds": 0},
        "synthesis": {"records": 10**4, "omega": "all"},
    }
    plan = make_plan(build_spec(tree))
    assert predict(plan, Layout(workers=2, memory=8, partitions=16)).seconds > 0


def test_a_driver_that_publishes_many_cells_is_larger(wide: Plan, billion: Plan) -> None:
    sizing = size_cluster(wide)
    assert wide.resources()["publisher_bytes"] > 10**9
    assert sizing.driver << 30 > wide.resources()["publisher_bytes"]
    assert sizing.helm.endswith(f",driver.memory={sizing.driver}Gi")
    assert "driver" not in size_cluster(billion).helm


def test_the_chart_takes_the_line(billion: Plan) -> None:
    need_tools()
    import helm_python

    sizing = size_cluster(billion)
    flag, _, text = sizing.helm.partition(" ")
    assert flag == "--set"
    rendered = render(merge(example("job"), helm_python.parse_set_string(text) | integers(text)))
    workers = rendered.one("Deployment", "-workers")["spec"]
    assert workers["replicas"] == sizing.proposed.workers
    limit = workers["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert limit == f"{sizing.proposed.memory}Gi"
    arguments = rendered.one("Job")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"cluster.partitions={sizing.proposed.partitions}" in arguments


def integers(text: str) -> dict[str, Any]:
    """What --set gives for the line: numbers as numbers."""
    tree: dict[str, Any] = {}
    for item in text.split(","):
        path, value = item.split("=")
        merge(tree, nested(path.split("."), int(value) if value.isdigit() else value))
    return tree


def nested(names: list[str], value: Any) -> Any:
    return value if not names else {names[0]: nested(names[1:], value)}


# Command line


def test_on_the_command_line(tmp_path: Path) -> None:
    spec = [str(RELEASES / "acs2024-paper.yaml"), "--set", "synthesis.omega=all"]
    shown = CliRunner().invoke(app, ["plan", *spec, "--cluster"])
    assert shown.exit_code == 0
    assert re.search(r"Helm\n--set dask.workers.replicas=\d+,dask.workers.memory=\d+Gi,release.settings", shown.stdout)
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({"costs": {**MEASURED.to_json(), "read": 1e-5}}))
    dear = CliRunner().invoke(app, ["plan", *spec, "--cluster", "--costs", str(file), "--json"])
    tree = json.loads(dear.stdout)
    assert len(tree["sizes"]) == len(WORKERS)
    assert tree["seconds"] > 1
    assert tree["helm"].startswith("--set dask.workers.replicas=")


@pytest.mark.parametrize("content", ["", "{}", '{"costs": {"read": 1}}', '{"costs": 3}'])
def test_a_file_without_costs(tmp_path: Path, content: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.raises(errors.SpecError, match="bench_sizing"):
        read_costs(path)


@pytest.mark.parametrize("value", [-1.0, math.inf, "1"])
def test_costs_are_seconds(value: Any) -> None:
    with pytest.raises(ValueError, match="seconds"):
        Costs.from_json({**MEASURED.to_json(), "read": value})
