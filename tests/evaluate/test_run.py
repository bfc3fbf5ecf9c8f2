"""`dpdist evaluate` as a user meets it: what it writes, what it refuses, and that nothing leaks."""

import json
import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from buckets import s3_server
from releases import KEY, SCHEMA, table
from typer.testing import CliRunner

from dpdist import errors
from dpdist.cli import app
from dpdist.cluster.opening import open_cluster
from dpdist.data.released import ReleasedTable
from dpdist.errors import SpecError
from dpdist.evaluation import run as module
from dpdist.evaluation.inputs import Inputs, open_inputs
from dpdist.evaluation.page.page import WORDS
from dpdist.evaluation.request import Request
from dpdist.evaluation.run import Evaluated, run_evaluation, tables_of
from dpdist.evaluation.utility.marginals import chosen_triples, distances
from dpdist.lifecycle.run import run_release
from dpdist.privacy.formatting import folded
from dpdist.publish.verify import open_release, read_release
from dpdist.spec.reader import load
from dpdist.spec.release import ClusterSpec
from tests.evaluate.conftest import Made

SMALL: dict[str, Any] = {"train": 60, "test": 60, "attacks": False}


def request(made: Made, output: Path | str, **changes: Any) -> Request:
    own: dict[str, Any] = {"release": made.release, "against": (made.table,), "output": output, "cluster": "threads"}
    return Request(**own | SMALL | changes)


def opened(made: Made, cluster: Any, **changes: Any) -> Inputs:
    store, manifest = open_release(made.release)
    asked = request(made, Path("unused"))
    return open_inputs(
        ReleasedTable(store, manifest),
        tables_of(replace(asked, holdout=(made.holdout,))),
        executor=cluster,
        seed=0,
        progress=lambda *_: None,
        **changes,
    )


def test_a_page_and_its_figures(made: Made, tmp_path: Path) -> None:
    """The command end to end, attacks and hold-out included."""
    answer = CliRunner().invoke(
        app,
        ["evaluate", made.release, "--against", made.table, "--holdout", made.holdout, "--output",
         str(tmp_path / "page"), "--train", "300", "--test", "300", "--json"],
        catch_exceptions=False,
    )  # fmt: skip
    assert answer.exit_code == 0, answer.output
    done = json.loads(answer.stdout)
    figures = json.loads(Path(done["figures"]).read_text())
    assert next(iter(figures)) == "confidential"
    names = {"marginals", "correlations", "components", "models", "attributes", "distinguishing", "membership"}
    assert names <= set(figures["sections"])
    assert figures["sections"]["models"]["figures"]["held_out"] is True
    assert figures["facts"]["real records"] == "30,000"
    assert "add/remove" in figures["guarantees"][0]
    assert "by the same mechanism" in figures["sections"]["membership"]["tables"][0]["note"]
    folder = tmp_path / "page"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    text = Path(done["page"]).read_text()
    assert "CONFIDENTIAL" in text
    for item in done["verdicts"]:
        assert item["state"] in ("good", "fair", "bad", "info")


@pytest.mark.parametrize("state", WORDS)
def test_a_long_verdict_stands_beside_its_word(state: str) -> None:
    section = {"name": "copies", "title": "Copies", "state": state, "verdict": "as good as it gets " * 6}
    verdicts = (section, section | {"name": "linkage", "title": "Linkage"})
    text = folded(Evaluated(page="page", figures="figures", verdicts=verdicts).explain())
    begins = {line.index(line[17:].strip()) for line in text.split("\n")[1:]}
    assert begins == {17}
    assert text.count("Copies, Linkage. as good") == 1


def test_distances_are_those_of_the_files(made: Made) -> None:
    """Counted by tasks over parts and partitions, against dictionaries of what a reader finds."""
    with open_cluster(ClusterSpec(mode="threads")) as cluster:
        inputs = opened(made, cluster)
        counts = inputs.marginals()
    both = [of.to_pydict() for of in (read_release(made.release), pq.read_table(made.table))]
    for columns in both:
        columns["age"] = [age // 5 for age in columns["age"]]
    found = distances(counts["released"], counts["real"], 2)
    names = list(both[0])
    for place, (i, j) in enumerate(counts["real"].subsets(2)):
        cells = [Counter(zip(columns[names[i]], columns[names[j]], strict=True)) for columns in both]
        expected = sum(abs(cells[0][c] / 2_500 - cells[1][c] / 30_000) for c in cells[0] | cells[1]) / 2
        assert found[place] == pytest.approx(expected)
    assert counts["first half"].records + counts["second half"].records == 30_000
    assert abs(counts["first half"].records - 15_000) < 6 * 90
    assert counts["real"].triples.keys() == dict.fromkeys(chosen_triples(inputs.view.sizes, seed=0)).keys()


def test_samples_are_random_bounded_and_repeatable(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_cluster(ClusterSpec(mode="threads")) as cluster:
        inputs = opened(made, cluster)
        everything = inputs.samples()
        monkeypatch.setattr("dpdist.evaluation.inputs.LARGEST_SAMPLE", 1_000)
        first, again = inputs.samples(), opened(made, cluster).samples()
    assert {name: len(codes[0]) for name, codes in everything.items()} == {
        "released": 2_500,
        "real": 30_000,
        "holdout": 8_000,
    }
    for name, codes in first.items():
        assert abs(len(codes[0]) - 1_000) < 6 * 32
        for ours, theirs in zip(codes, again[name], strict=True):
            assert np.array_equal(ours, theirs)
    share = np.mean(everything["real"][0] == 0)
    assert abs(np.mean(first["real"][0] == 0) - share) < 6 * np.sqrt(share * (1 - share) / 1_000)


@pytest.mark.usefixtures("undrawn")
def test_csv_is_read_as_the_spec_says(made: Made, tmp_path: Path) -> None:
    columns = pq.read_table(made.table).slice(0, 3_000)
    text = tmp_path / "table.csv"
    pa.csv.write_csv(columns, text, pa.csv.WriteOptions(include_header=False, delimiter=";"))
    tree = made.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    tree["data"] |= {
        "path": str(text),
        "csv": {"header": False, "delimiter": ";", "columns": list(columns.column_names)},
    }
    done = run_evaluation(request(made, tmp_path / "page", against=(), spec=load(tree)))
    assert json.loads(Path(done.figures).read_text())["facts"]["real records"] == "3,000"
    with pytest.raises(errors.DataError):  # without the spec its first line would be names
        run_evaluation(request(made, tmp_path / "page", against=(str(text),)))


@pytest.fixture
def bucket(made: Made, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a store that holds the release and the table."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with s3_server() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        client = boto3.client("s3", endpoint_url=endpoint)
        client.create_bucket(Bucket="bucket")
        for path in Path(made.release).rglob("*"):
            if path.is_file():
                client.upload_file(str(path), "bucket", f"release/{path.relative_to(made.release)}")
        client.upload_file(made.table, "bucket", "table.parquet")
        yield client


@pytest.mark.usefixtures("undrawn")
def test_from_object_storage_to_a_confidential_bucket(made: Made, tmp_path: Path, bucket: Any) -> None:
    bucket.create_bucket(Bucket="secret")
    remote = request(
        made,
        "s3://secret/pages/first",
        release="s3://bucket/release",
        against=("s3://bucket/table.parquet",),
        storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
    )
    with pytest.raises(errors.SpecError, match=r"Add --confidential if only readers of the real table"):
        run_evaluation(remote)
    for place, text in (
        ("bucket/release/page", "must not contain"),
        ("bucket", "must not contain"),
        ("nowhere/page", "nowhere"),
    ):
        with pytest.raises(errors.DpdistError, match=text):
            run_evaluation(replace(remote, output=f"s3://{place}", confidential=True))
    done = run_evaluation(replace(remote, confidential=True))
    assert (done.page, done.figures) == tuple(f"s3://secret/pages/first/evaluation.{kind}" for kind in ("html", "json"))
    found = [entry["Key"] for entry in bucket.list_objects_v2(Bucket="secret")["Contents"]]
    assert found == ["pages/first/evaluation.html", "pages/first/evaluation.json"]
    figures = json.loads(bucket.get_object(Bucket="secret", Key=found[1])["Body"].read())
    assert figures["facts"]["released records"] == "2,500"


def test_another_release_in_the_bucket_is_no_place_for_a_page(made: Made, bucket: Any) -> None:
    bucket.copy({"Bucket": "bucket", "Key": "release/_manifest.json"}, "bucket", "other/_manifest.json")
    with pytest.raises(errors.SpecError, match=r"inside a release \(s3://bucket/other\)"):
        run_evaluation(request(made, "s3://bucket/other/deep/page", confidential=True))


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_what_is_wrong_is_said_before_anything_is_read(made: Made, tmp_path: Path) -> None:
    page = tmp_path / "page"
    for changes, error, text in [
        ({"release": str(tmp_path)}, errors.DataNotFound, "no finished release"),
        ({"against": ()}, errors.SpecError, "--against"),
        ({"against": ("nowhere.parquet",)}, errors.DataNotFound, "no file at"),
        ({"holdout": ("nowhere.parquet",)}, errors.DataNotFound, "no file at"),
        ({"holdout": (made.table,)}, errors.SpecError, "--against as well"),
        ({"against": (made.holdout,), "holdout": (made.table,), "spec": made.spec}, errors.SpecError, "--spec names"),
        ({"output": Path(made.release) / "page"}, errors.SpecError, "confidential"),
        ({"output": made.folder}, errors.SpecError, "must not contain"),
        ({"cluster": "fast"}, errors.SpecError, "--cluster"),
        ({"target": "sexe"}, errors.SpecError, "expected one of region"),
    ]:
        with pytest.raises(error, match=text):
            run_evaluation(request(made, **{"output": page, **changes}))
    assert not page.exists()


def test_another_schema_is_refused_by_column(made: Made, tmp_path: Path) -> None:
    columns = table(500)
    pq.write_table(columns.drop_columns(["score"]), tmp_path / "less.parquet")
    with pytest.raises(errors.ColumnMismatch, match="'score'"):
        run_evaluation(request(made, tmp_path / "page", against=(str(tmp_path / "less.parquet"),)))
    secret = pa.array(["TopSecretValue"] * 500)
    pq.write_table(columns.set_column(0, "region", secret), tmp_path / "other.parquet")
    with pytest.raises(errors.OutOfDomain, match="'region'") as caught:
        run_evaluation(request(made, tmp_path / "page", against=(str(tmp_path / "other.parquet"),)))
    assert "TopSecret" not in str(caught.value)


def test_a_damaged_release_is_refused(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.release, tmp_path / "release")
    part = next((tmp_path / "release").rglob("*.parquet"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(errors.VerificationFailed, match="SHA-256"):
        run_evaluation(request(made, tmp_path / "page", release=str(tmp_path / "release")))


def test_missing_packages_are_named(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpdist.evaluation.report.find_spec", lambda name: None if name == "sklearn" else object())
    with pytest.raises(errors.SpecError, match=r"scikit-learn: pip install 'dpdist\[evaluate\]'"):
        run_evaluation(request(made, tmp_path / "page"))


def test_a_folder_that_is_a_file(made: Made, tmp_path: Path) -> None:
    (tmp_path / "page").write_text("x")
    for output in (tmp_path / "page", tmp_path / "page" / "below"):
        with pytest.raises(errors.OutputUnwritable, match="choose another --output"):
            run_evaluation(request(made, output, against=("nowhere.parquet",)))  # before anything is read


# --- labels, statistics ----------------------------------------------------------------------------------------------

EVIL = "<script>alert(1)</script>"


@pytest.mark.usefixtures("few_trees")
def test_labels_of_a_schema_do_not_run_in_the_page(made: Made, tmp_path: Path) -> None:
    """The schema is the publisher's: its names and values meet the page of who evaluates the release."""
    names = {"region": "region</td><img src=x onerror=alert(1)>", "employed": "$\\frac{"}
    tree = made.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    for attribute in tree["schema"]["attributes"]:
        attribute["name"] = names.get(attribute["name"], attribute["name"])
        if attribute.get("values") == ["yes", "no"]:
            attribute["values"] = [EVIL, "no"]
    columns = table(30_000).rename_columns([names.get(name, name) for name in table(1).column_names])
    employed = pa.array([EVIL if v == "yes" else v for v in columns[names["employed"]].to_pylist()])
    columns = columns.set_column(4, names["employed"], employed)
    pq.write_table(columns, tmp_path / "evil.parquet")
    tree["data"]["path"] = str(tmp_path / "evil.parquet")
    tree |= {"name": "evil", "work": str(tmp_path / "work")}
    tree["output"]["path"] = str(tmp_path / "release")
    run_release(load(tree), fixed_key=KEY)
    done = run_evaluation(
        request(made, tmp_path / "page", release=str(tmp_path / "release"), against=(str(tmp_path / "evil.parquet"),))
    )
    text = Path(done.page).read_text()
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "not private" in text  # a fixed key: said on the page


@pytest.mark.usefixtures("undrawn")
def test_statistics_are_compared_with_the_table(made: Made, tmp_path: Path) -> None:
    tree = {
        "kind": "histogram",
        "name": "counts",
        "dataset": "people",
        "schema": SCHEMA,
        "data": {"path": made.table, "minimum_records": 20_000},
        "output": {"path": str(tmp_path / "release")},
        "ledger": made.spec.ledger,
        "work": str(tmp_path / "work"),
        "cluster": {"mode": "threads"},
        "privacy": {"epsilon": 1, "delta": 1e-7},
        "histograms": [{"columns": ["region"]}, {"columns": ["score", "sex"]}, {"columns": ["age"], "buckets": True}],
        "entropies": {"of": "all", "orders": [1.0, 2.0]},
    }
    run_release(load(tree))
    done = run_evaluation(request(made, tmp_path / "page", release=str(tmp_path / "release")))
    figures = json.loads(Path(done.figures).read_text())["sections"]
    assert set(figures) == {"counts", "entropies", "records"}
    truth = Counter(pq.read_table(made.table)["region"].to_pylist())
    rows = read_release(tmp_path / "release").to_pylist()
    ours = {row["cell"]: row["value"] for row in rows if (row["statistic"], row["of"]) == ("count", "region")}
    expected = sum(abs(ours[name] - truth[name]) for name in truth) / 30_000
    found = {row["of"]: row["errors / truth"] for row in figures["counts"]["figures"]["of"]}
    assert found["region"] == pytest.approx(expected)
    assert set(found) == {"region", "score × sex", "age (buckets)"}
    assert len(figures["entropies"]["figures"]["of"]) == 6
    assert figures["counts"]["state"] == "good"
    assert "statistics, not records" in figures["records"]["verdict"]
    with pytest.raises(errors.SpecError, match="released records only"):
        run_evaluation(request(made, tmp_path / "page", release=str(tmp_path / "release"), publish=1.0))


def test_a_release_without_records_is_refused(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, manifest = open_release(made.release)
    empty = manifest.model_copy(update={"records": 0, "parts": ()})
    monkeypatch.setattr(module, "open_release", lambda *_, **__: (open_release(made.release)[0], empty))
    with pytest.raises(errors.EmptyTable, match="nothing to evaluate"):
        run_evaluation(request(made, tmp_path / "page"))


# --- One request of an evaluation, from a file, from options and from Python


TOLD = """
release: out/first
against: [table.parquet, s3://bucket/more.parquet]
holdout: others.parquet
train: 100
publish: 0.5
attacks: false
"""


def test_a_file_says_what_options_say_and_its_paths_are_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("asked").mkdir()
    Path("asked/evaluation.yaml").write_text(TOLD)
    options = {
        "release": "asked/out/first",
        "against": ("asked/table.parquet", "s3://bucket/more.parquet"),
        "holdout": "asked/others.parquet",
        "train": 100,
        "publish": 0.5,
        "attacks": False,
    }
    assert Request.read(Path("asked/evaluation.yaml"), {}) == Request.of(options)
    replaced = Request.read(Path("asked/evaluation.yaml"), {"against": ["here.parquet"], "attacks": True})
    assert replaced == Request.of({**options, "against": ("here.parquet",), "attacks": True})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"targets": "age"}, "did you mean .target."),
        ({"train": "many"}, "train: expected an integer"),
        ({"against": 3}, "against: expected a list"),
        ({"train": 10}, "50 records or more"),
        ({"executor": "tcp://127.0.0.1:1"}, "executor: no setting"),
        ({"release": None}, "release: expected a text"),
    ],
)
def test_what_is_wrong_with_a_setting_is_said(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        Request.of({"release": "out", **given})
