"""Histogram releases through the command line: real tables, every refusal, and what an attacker may look at."""

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from commands import Answer, Command
from reading import readable

from dpdist.data.inputs import table_source
from dpdist.data.table import open_table
from dpdist.errors import VerificationFailed
from dpdist.families.base.graph import run_pass
from dpdist.families.histogram.counts import histogram_operator
from dpdist.families.histogram.entropy import shannon
from dpdist.families.histogram.plan import HistogramPlan, plan
from dpdist.families.histogram.spec import HistogramSpec
from dpdist.families.histogram.stages import NoisyStatistics
from dpdist.publish.statement import check_statement
from dpdist.publish.verify import read_manifest, read_release
from dpdist.spec.reader import load

DEPLOY = Path(__file__).parents[3] / "deploy"
KEY = "5a" * 32


def ledger(dpdist: Command, name: str = "d", *more: str, epsilon: str = "10") -> None:
    made = dpdist("ledger", "create", name, "--epsilon", epsilon, "--delta", "1e-5", *more)
    assert made.code == 0, made.err


def release(dpdist: Command, spec: Path, *more: str) -> Answer:
    return dpdist("release", str(spec), "--set", "cluster.mode=threads", "--json", *more)


SCHEMA: list[dict[str, Any]] = [
    {"name": "x", "kind": "number", "bounds": [0, 10], "bins": {"edges": [0, 1, 2.5, 5]}},
    {"name": "sex", "kind": "categorical", "values": ["F", "M"]},
    {"name": "n", "kind": "integer", "bounds": [0, 9]},
]
BASE: dict[str, Any] = {
    "kind": "histogram",
    "name": "one",
    "dataset": "d",
    "schema": {"attributes": SCHEMA},
    "data": {"path": "table.parquet", "minimum_records": 1000},
    "output": {"path": "out"},
    "privacy": {"epsilon": 1},
    "histograms": [{"columns": ["x"]}, {"columns": ["sex", "n"]}],
}
ROWS = 12_347


def table(rows: int = ROWS) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {
        "x": np.minimum(rng.exponential(2, rows), 10),
        "sex": np.array(["F", "M"])[rng.integers(0, 2, rows)],
        "n": rng.binomial(9, 0.4, rows),
    }


def project(folder: Path, columns: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Write a table and a spec."""
    pq.write_table(pa.table(table() if columns is None else columns), folder / "table.parquet", row_group_size=2000)
    tree = {name: value for name, value in {**BASE, **changes}.items() if value is not None}
    spec = folder / "spec.yaml"
    spec.write_text(yaml.safe_dump(tree, sort_keys=False))
    return spec


def counted(spec: HistogramSpec) -> list[np.ndarray]:
    """The true tables of a spec."""
    made = plan(spec)
    assert made.counts is not None
    source = open_table(table_source(spec), spec.table)
    return list(run_pass(source, histogram_operator(made.counts))[0])


def shipped(name: str, folder: Path) -> Path:
    """A copy of a shipped spec, whose paths are from its folder."""
    shutil.copytree(DEPLOY / "releases", folder / "deploy" / "releases")
    return folder / "deploy" / "releases" / f"{name}.yaml"


def write_months(folder: Path) -> None:
    load_recipe("unrate_months").main(str(folder / "UNRATE.csv"), str(folder / "unrate_months.csv"))


def load_recipe(name: str) -> Any:
    made = importlib.util.spec_from_file_location(name, DEPLOY / "recipes" / f"{name}.py")
    assert made is not None
    assert made.loader is not None
    module = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "file", "records", "entropy"),
    [("saleprice", "house_prices_saleprice.csv", 1460, 3.4873), ("unrate", "UNRATE.csv", 601, 4.0458)],
)
def test_table_s3(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    shared_data: Any,
    name: str,
    file: str,
    records: int,
    entropy: float,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / file).symlink_to(shared_data(file))
    if name == "unrate":
        write_months(tmp_path / "data")
    spec = load(shipped(name, tmp_path))
    assert isinstance(spec, HistogramSpec)
    (counts,) = counted(spec)
    assert (counts.sum(), counts.size) == (records, 30)
    assert shannon(counts) == pytest.approx(entropy, abs=5e-5)
    made = plan(spec)
    assert made.entropies is not None
    both = made.entropies.bounds[0]
    assert 0.45 < both.sensitivity / both.published_bound < 0.5


def attributes(**x: Any) -> dict[str, Any]:
    return {"attributes": [{**SCHEMA[0], **x}, *SCHEMA[1:]]}


PML = {"mechanism": "pml", "adjacency": "replacement", "epsilon": 0.5, "alpha": 0.2}


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"schema": attributes(bins={"edges": [1, 2]})}, 2, "attribute 'x': the bins do not cover the domain"),
        ({"privacy": PML, "histograms": [{"columns": ["x", "n"]}]}, 4, "alpha = 0.2 is above 1/40"),
        ({"privacy": {**PML, "epsilon": 3}, "histograms": [{"columns": ["x"]}]}, 4, "accept_no_noise: true"),
        ({"privacy": {"epsilon": 40}}, 4, "above 27"),
        ({"privacy": {"epsilon": 1, "limit": 0.5}}, 4, "above privacy.limit=0.5"),
    ],
)
def test_refused_before_anything_is_read(
    dpdist: Command, tmp_path: Path, changes: dict[str, Any], code: int, message: str
) -> None:
    ledger(dpdist, "d", "--allow", "dp", "--allow", "pml")
    spec = project(tmp_path, **changes)
    (tmp_path / "table.parquet").unlink()
    planned = dpdist("plan", str(spec))
    refused = planned if planned.code else release(dpdist, spec)
    assert (refused.code, message in refused.err) == (code, True), refused.err
    assert dpdist("ledger", "show", "d", "--json").json[0]["charges"] == []


@pytest.mark.parametrize(
    ("column", "changes", "message"),
    [
        (["1.5", "n/a"], {}, "column 'x': values that are no numbers in a number attribute"),
        ([1.5, float("nan")], {}, "column 'x': missing values, and the policy is `missing: refuse`"),
        ([1.5, float("inf")], {}, "column 'x': values outside the declared domain"),
        ([1.5, 10.5], {}, "column 'x': values outside the declared domain"),
        ([True, None], {}, "column 'x' has the type bool, which cannot hold a number attribute"),
        ([b"1", b"2"], {}, "column 'x' has the type binary, which cannot hold a number attribute"),
        ([1.5, None], {"schema": attributes(missing="drop", out_of_domain="drop")}, ""),
        ([float("nan")] * 2, {"schema": attributes(missing="drop")}, ""),
        ([1.5], {}, ""),
        ([], {}, ""),
    ],
)
def test_odd_tables(dpdist: Command, tmp_path: Path, column: list[Any], changes: dict[str, Any], message: str) -> None:
    ledger(dpdist)
    rows = len(column)
    kind = None if rows else pa.float64()
    columns = {
        "x": pa.array(column, kind),
        "sex": pa.array(["F"] * rows, pa.string()),
        "n": pa.array([3] * rows, pa.int8()),
    }
    made = release(dpdist, project(tmp_path, columns, **changes))
    states = [charge["state"] for charge in dpdist("ledger", "show", "d", "--json").json[0]["charges"]]
    if message:
        assert (made.code, message in made.err) == (3, True), made.err
        assert states == ([] if "has the type" in message else ["drawing"])  # what values decide stays charged
        assert not list((tmp_path / "out").glob("manifest*"))
    else:
        assert made.code == 0, made.err
        assert states == ["committed"]
        assert made.json["cells"] == 4 + 20


def test_a_data_set_decides_about_leakage(dpdist: Command, tmp_path: Path) -> None:
    exact = {**PML, "epsilon": 3, "accept_no_noise": True}
    spec = project(tmp_path, privacy=exact, histograms=[{"columns": ["x"]}])
    ledger(dpdist, "d", "--allow", "dp")
    refused = release(dpdist, spec).err
    assert "allows the guarantees dp, not 'pml'" in refused
    assert "--allow pml" in refused
    ledger(dpdist, "without", "--allow", "pml")
    refused = release(dpdist, spec, "--set", "dataset=without")
    assert (refused.code, "has no account of leakage" in refused.err) == (4, True)
    assert "too little for this release" in dpdist("plan", str(spec), "--set", "dataset=without").out
    ledger(dpdist, "small", "--allow", "pml", "--pml", "1")
    refused = release(dpdist, spec, "--set", "dataset=small")
    assert "the cap of the account is 1 nats" in refused.err
    ledger(dpdist, "with", "--allow", "pml", "--pml", "2")
    planned = dpdist("plan", str(spec), "--set", "dataset=with")
    assert "exact counts are released, as asked for by name" in planned.words
    assert "0.390562 nats after this release" in planned.words
    made = release(dpdist, spec, "--set", "dataset=with")
    assert made.code == 0, made.err
    assert made.json["guarantee"].startswith("Pointwise maximal leakage of at most 1.60944 nats")
    assert "no noise, hence no differential privacy" in made.json["guarantee"]
    assert "leakage of 0.390562 of 2 nats left" in made.json["budget"]
    truth = np.histogram(table()["x"], [0, 1, 2.5, 5, 10])[0]
    assert read_release(tmp_path / "out")["noisy"].to_pylist() == truth.tolist()
    again = release(dpdist, spec, "--set", "dataset=with", "--set", "name=two", "--set", "output.path=two")
    assert "infinite leakage" in again.err
    limited = release(dpdist, spec, "--set", "dataset=with", "--set", "name=two", "--set", "privacy.limit=5")
    assert "costs epsilon inf" in limited.err


def test_histograms_share_a_leakage(dpdist: Command, tmp_path: Path) -> None:
    spec = project(tmp_path, privacy=PML, histograms=[{"columns": ["x"]}, {"columns": ["sex"]}])
    ledger(dpdist, "with", "--allow", "pml", "--pml", "2")
    made = release(dpdist, spec, "--set", "dataset=with")
    assert made.code == 0, made.err
    assert made.json["guarantee"].startswith("Pointwise maximal leakage of at most 0.499956 nats")
    assert "leakage of 1.50004 of 2 nats left" in made.json["budget"]
    assert dpdist("verify", str(tmp_path / "out")).code == 0
    manifest = read_manifest(tmp_path / "out")
    (scale,) = {one["scale"] for one in manifest.parameters["histograms"]}
    assert manifest.guarantees[0]["dp_epsilon"] == pytest.approx(4 / scale)
    check_statement(manifest)
    event = manifest.parameters["event"]
    more = event | {"events": [*event["events"], event["events"][0]]}  # three histograms leak more than is stated
    with pytest.raises(VerificationFailed, match="leakage"):
        check_statement(manifest.model_copy(update={"parameters": manifest.parameters | {"event": more}}))
    levels = {"hierarchies": [[0, 1]]}
    nested = [{"columns": ["x", "sex"]}, {"columns": ["x"]}]
    changes = [
        "--set",
        "dataset=with",
        "--set",
        f"counts={levels}",
        "--set",
        "output.path=levels",
        "--set",
        "name=levels",
    ]
    made = release(dpdist, project(tmp_path, privacy={**PML, "alpha": 0.1}, histograms=nested), *changes)
    assert made.code == 0, made.err
    assert dpdist("verify", str(tmp_path / "levels")).code == 0
    assert read_manifest(tmp_path / "levels").parameters["event"]["alphas"] == pytest.approx([0.1, 0.2])
    ledger(dpdist, "budget", "--allow", "pml")  # without an account the equal differential privacy is charged
    other = release(dpdist, spec, "--set", "dataset=budget", "--set", "output.path=two", "--set", "name=two")
    assert other.code == 0, other.err
    assert "0.499957 nats" in other.json["guarantee"]


VALUES = ["v0", "v1", "v2", "v3"]


def curves_project(folder: Path, curves: int = 200) -> Path:
    rng = np.random.default_rng(2)
    bounds = {"kind": "number", "bounds": [-9, 9], "out_of_domain": "clip"}
    return project(
        folder,
        {name: rng.normal(1, 1, curves) for name in VALUES},
        schema={"attributes": [{"name": name, **bounds} for name in VALUES]},
        histograms=None,
        curves={"columns": VALUES, "times": [0, 0.25, 0.5, 1], "domain": [0, 1], "penalty": 0.01, "clip": 2},
        data={"path": "table.parquet", "minimum_records": curves},
        privacy={"epsilon": 2, "delta": 1e-6, "adjacency": "replacement"},
    )


def test_curves_do_not_depend_on_partitions(dpdist: Command, tmp_path: Path) -> None:
    ledger(dpdist, epsilon="25")
    spec = curves_project(tmp_path)
    pq.write_table(pq.read_table(tmp_path / "table.parquet"), tmp_path / "table.parquet", row_group_size=7)
    files = []
    for partitions in (1, 3, 50):
        settings = [f"cluster.partitions={partitions}", f"name=p{partitions}", f"output.path=p{partitions}"]
        more = [part for setting in settings for part in ("--set", setting)]
        made = release(dpdist, spec, "--test-key", KEY, *more)
        assert made.code == 0, made.err
        assert "one curve is replaced by another" in made.json["guarantee"]
        files.append(next((tmp_path / f"p{partitions}" / "data").rglob("*.parquet")).read_bytes())
    assert files[0] == files[1] == files[2]
    rows = read_release(tmp_path / "p1").to_pylist()
    assert [row["cell"] for row in rows] == ["0.0", "0.25", "0.5", "1.0"]


def test_curves_that_are_not_as_many_stay_charged(dpdist: Command, tmp_path: Path) -> None:
    ledger(dpdist)
    refused = release(dpdist, curves_project(tmp_path), "--set", "data.minimum_records=199")
    assert (refused.code, "declared as 199 and public" in refused.err, "200" in readable(refused.err)) == (
        4,
        True,
        False,
    )
    shown = dpdist("ledger", "show", "d", "--json").json[0]
    assert [charge["state"] for charge in shown["charges"]] == ["drawing"]


def test_true_counts_are_nowhere_but_in_the_run_record(dpdist: Command, tmp_path: Path) -> None:
    ledger(dpdist)
    spec = project(
        tmp_path, entropies={}, privacy={"epsilon": 1, "delta": 1e-6}, data={**BASE["data"], "minimum_records": 9000}
    )
    made = release(dpdist, spec)
    assert made.code == 0, made.err
    x, columns = np.histogram(table()["x"], [0, 1, 2.5, 5, 10])[0], table()
    secrets = {str(ROWS), f"{ROWS:,}", *map(str, x[x > 1000])}
    seen = made.out + made.err + dpdist("plan", str(spec)).out + dpdist("runs", "list", "--json").out
    names = " ".join(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    manifest = (tmp_path / "out" / "_manifest.json").read_text()
    for secret in secrets:
        assert not re.search(rf"\b{secret}\b", readable(seen, names, manifest)), secret
    found = [
        path.name
        for path in (tmp_path / ".dpdist").rglob("*")
        if path.is_file() and str(ROWS) in readable(path.read_bytes().decode("latin-1"))
    ]
    assert found == ["run-record.json"]
    noisy = np.array(read_release(tmp_path / "out")["noisy"])
    stored = next((tmp_path / ".dpdist").rglob("statistics.npz"))
    arrays = NoisyStatistics.from_bytes(stored.read_bytes()).arrays
    np.testing.assert_array_equal(arrays["table_0"], noisy[:4])
    truth = np.zeros((2, 10), int)
    np.add.at(truth, ((columns["sex"] == "M").astype(int), columns["n"]), 1)
    assert not np.array_equal(arrays["table_1"], truth)
    assert set(arrays) == {"table_0", "table_1", "entropies"}
    again = ["--test-key", KEY, "--set", "name=again", "--set", "output.path=again"]
    assert release(dpdist, spec, *again).code == 0  # a new key may draw four zeros
    assert not np.isin(x, np.array(read_release(tmp_path / "again")["noisy"])[:4]).all()


def test_no_two_statistics_share_noise(dpdist: Command, tmp_path: Path) -> None:
    """The same histogram twice, and a pair that holds it: each has noise of its own, and each is charged."""
    ledger(dpdist)
    queries = [{"columns": ["n"]}, {"columns": ["n"]}, {"columns": ["n"], "buckets": True}]
    spec = project(tmp_path, histograms=queries, shares="equal")
    made = release(dpdist, spec)
    assert made.code == 0, made.err
    noisy = np.array(read_release(tmp_path / "out")["noisy"]).reshape(3, 10)
    truth = np.bincount(table()["n"], minlength=10)
    errors = noisy - truth
    assert all((errors[i] != errors[j]).any() for i, j in ((0, 1), (0, 2), (1, 2)))
    loaded = load(spec)
    assert isinstance(loaded, HistogramSpec)
    planned = plan(loaded)
    assert isinstance(planned, HistogramPlan)
    assert planned.deviations[0] == pytest.approx(np.sqrt(2) * 3, rel=0.02)  # a third of the budget each
    assert planned.epsilon == pytest.approx(1)


def test_accounts(dpdist: Command) -> None:
    renyi = dpdist("account", "entropy", "--records", "10000", "--order", "2", "--adjacency", "replacement").json
    assert renyi["sensitivity"] == pytest.approx(0.0144, abs=5e-5)
    assert renyi["published_bound"] == pytest.approx(0.00058, abs=5e-6)
    assert dpdist("account", "entropy", "--records", "10000").json["published_bound_holds"] is True
    unknown = dpdist("account", "entropy", "--records", "10", "--adjacency", "swap")
    assert (unknown.code, "adjacency must be one of add/remove, replacement" in unknown.err) == (2, True)
    pml = dpdist("account", "pml", "--epsilon", "0.5", "--alpha", "0.05").json
    assert pml["scale"] == pytest.approx(3.7401, rel=5e-4)
    assert pml["dp_epsilon"] == pytest.approx(2 / pml["scale"])
    assert dpdist("account", "pml", "--epsilon", "3", "--alpha", "0.05").code == 4


def test_the_budget_says_who_took_the_number_of_records_for_public(dpdist: Command, tmp_path: Path) -> None:
    ledger(dpdist)
    said = "under replacement took the number of records for public"
    spec = project(tmp_path)
    first = json.loads(release(dpdist, spec).out)
    assert "epsilon 9 of 10" in first["budget"]
    assert said not in first["budget"]
    project(tmp_path, name="two", output={"path": "two"}, privacy={"epsilon": 1, "adjacency": "replacement"})
    second = json.loads(release(dpdist, spec).out)
    assert "epsilon 8 of 10" in second["budget"]
    assert f"1 release {said}" in second["budget"]
    assert f"1 release {said}" in dpdist("plan", str(spec)).words
