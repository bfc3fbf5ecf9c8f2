"""What the objects of the API show and give back: plans, releases as frames, synthesizers."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from releases import in_memory

import dpdist

LEAST = {"data.minimum_records": 3_000}

pd = pytest.importorskip("pandas")

SCHEMA: dict[str, Any] = {
    "attributes": [
        {"name": "region", "kind": "categorical", "values": ["north", "south"], "missing": {"category": "unknown"}},
        {"name": "grade", "kind": "ordinal", "values": ["low", "mid", "high"]},
        {"name": "sex", "kind": "categorical", "values": [1, 2], "labels": ["female", "male"]},
        {"name": "age", "kind": "integer", "bounds": [0, 9], "missing": {"category": "unknown"}},
        {"name": "size", "kind": "integer", "bounds": [0, 3]},
        {"name": "price", "kind": "number", "bounds": [0, 10], "bins": {"count": 5}},
    ]
}


def frame(rows: int = 4_000, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "region": rng.choice(np.array(["north", "south", None], object), rows),
            "grade": rng.choice(["low", "mid", "high"], rows),
            "sex": rng.integers(1, 3, rows),
            "age": pd.array(np.where(rng.random(rows) < 0.3, np.nan, rng.integers(0, 10, rows)), dtype="Float64"),
            "size": rng.integers(0, 4, rows),
            "price": rng.random(rows) * 10,
        }
    )


def spec(name: str = "first", **changes: Any) -> dict[str, Any]:
    own = {"schema": SCHEMA, "data": {"minimum_records": 3_000}, "privacy": {"epsilon": 5, "delta": 1e-7}}
    return in_memory(name, **own | changes)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dpdist.Ledger:
    monkeypatch.chdir(tmp_path)
    ledger = dpdist.Ledger("sqlite:///ledger.db")
    assert "epsilon 100 of 100 left" in ledger.create("people", epsilon=100, delta="1e-4")
    return ledger


def test_a_plan_reads_no_record_and_shows_what_a_release_costs(ledger: dpdist.Ledger) -> None:
    class Unread:
        """A frame whose columns are known and whose records nobody may read."""

        columns = tuple(a["name"] for a in SCHEMA["attributes"])

    Unread.__module__ = "pandas.fake"
    plan = dpdist.plan(spec(), data=Unread(), ledger=ledger)
    assert plan.epsilon <= 5
    assert "one Gaussian mechanism" in " ".join(plan.explain().split())
    assert "epsilon 100 of 100 left" in repr(plan)
    assert plan._repr_html_().startswith("<table>")
    assert plan.to_json()["epsilon"] == plan.epsilon
    Unread.columns = ("region",)
    with pytest.raises(dpdist.errors.ColumnMismatch, match="'grade' is missing"):
        dpdist.plan(spec(), data=Unread(), ledger=ledger)
    assert not ledger.show("people").attempts


def test_frames_have_the_types_of_the_schema(ledger: dpdist.Ledger) -> None:
    release = dpdist.release(spec(), data=frame(), ledger=ledger)
    found = release.to_pandas()
    assert len(found) == len(release) == 3_000
    assert list(found["region"].cat.categories) == ["north", "south", "unknown"]
    assert not found["region"].cat.ordered
    assert found["region"].notna().all()
    assert (found["region"] == "unknown").any()
    assert list(found["grade"].cat.categories) == ["low", "mid", "high"]
    assert found["grade"].cat.ordered
    assert list(found["sex"].cat.categories) == [1, 2]
    assert found["age"].dtype == "Int64"
    assert found["age"].isna().any()
    assert found["size"].dtype == "int64"
    assert found["price"].dtype == "float64"
    named = release.to_pandas(labels=True)["sex"]
    assert (named.cat.rename_categories([1, 2]) == found["sex"]).all()
    arrow = release.to_arrow()
    assert arrow.schema.field("grade").type.ordered
    pd.testing.assert_frame_equal(release.to_dask().compute().reset_index(drop=True), found)
    release.to_csv("records.csv")
    read = pd.read_csv("records.csv")
    assert (read["region"] == found["region"].astype(str)).all()
    assert (read["age"].isna() == found["age"].isna()).all()
    assert pa.table(release).num_rows == 3_000


@pytest.mark.parametrize("values", ["values", "labels"])
def test_a_missing_category_comes_back_as_the_schema_names_it(values: str, ledger: dpdist.Ledger) -> None:
    """By its name among texts and labels, as a null among integers: in the parts, in frames, Arrow and CSV alike."""
    schema = {
        "attributes": [
            {"name": "sex", "kind": "categorical", "values": [1, 2], "labels": ["f", "m"]},
            {"name": "grade", "kind": "ordinal", "values": ["low", "high"]},
            {"name": "age", "kind": "integer", "bounds": [0, 9]},
        ]
    }
    for attribute in schema["attributes"]:
        attribute["missing"] = {"category": "not stated"}
    real = frame().replace({"grade": {"mid": None}})[["sex", "grade", "age"]].astype({"sex": "Int64"})
    real.loc[::3, "sex"] = None
    changes = {"schema": schema, "output": {"path": "out/first", "values": values, "rows_per_part": 1_000}}
    release = dpdist.release(spec(**changes), data=real, ledger=ledger)
    name = "not stated"
    for labels in (False, True):
        named = {"sex": labels or values == "labels", "grade": True, "age": False}
        release.to_csv("records.csv", labels=labels)
        written = pd.read_csv("records.csv", dtype=str, keep_default_na=False)
        found, arrow = release.to_pandas(labels=labels), release.to_arrow(labels=labels).to_pandas()
        parts = pd.read_parquet("out/first")
        for column, by_name in named.items():
            assert (found[column].isna().any(), (found[column] == name).any()) == (not by_name, by_name)
            assert (arrow[column].isna().any(), (arrow[column] == name).any()) == (not by_name, by_name)
            assert (written[column] == (name if by_name else "")).sum() == (
                found[column].isna() | (found[column] == name)
            ).sum()
            if not labels:
                assert (parts[column].isna().any(), (parts[column] == name).any()) == (not by_name, by_name)
        assert found["grade"].cat.ordered


def test_a_release_shows_its_guarantee_and_opens_verified(ledger: dpdist.Ledger) -> None:
    release = dpdist.release(spec(), data=frame(), ledger=ledger)
    assert release.guarantee == release.manifest.guarantee
    assert (release.epsilon, release.delta) == (5, 1e-7)
    answers = release.infer("mean size")
    assert answers._repr_html_().count("<tr>") == len(answers) == 1
    shown = [release, release.schema, release.verify(), ledger.show("people"), *answers]
    for thing, said in zip(
        shown, (release.guarantee, "grade ordinal: low, mid, high", "Verdict", "Allows", "95 %"), strict=True
    ):
        assert said in " ".join(repr(thing).split())
        assert thing._repr_html_().startswith("<table>")
        assert max(len(line) for line in str(thing).splitlines() if "/" not in line) <= 80
    assert "left for data set people" in repr(release)
    opened = dpdist.open_release("out/first")
    assert opened.to_arrow().equals(release.to_arrow())
    assert dpdist.verify(release, ledger=ledger).epsilon == pytest.approx(5, rel=1e-3)
    part = Path("out/first") / release.manifest.parts[0].name
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(dpdist.errors.VerificationFailed):
        dpdist.open_release("out/first")


@pytest.mark.usefixtures("undrawn")
def test_a_release_is_evaluated_against_frames(ledger: dpdist.Ledger) -> None:
    real = frame()
    release = dpdist.release(spec(), data=real, ledger=ledger)
    quick = {"train": 200, "test": 200, "attacks": False}
    found = release.evaluate(real, holdout=frame(seed=1), output="page", **quick)
    assert Path(found.page).exists()
    real.to_parquet("real.parquet")
    frame(seed=1).to_parquet("holdout.parquet")
    same = release.evaluate("real.parquet", holdout="holdout.parquet", output="again", **quick)
    assert found.verdicts == same.verdicts
    with pytest.raises(dpdist.errors.SpecError, match="hold-out is the table itself"):
        release.evaluate(real, holdout=real.copy(), output="page")


def test_a_synthesizer_charges_once_and_samples_for_free(ledger: dpdist.Ledger) -> None:
    model = dpdist.Synthesizer(
        SCHEMA, epsilon=5, delta=1e-7, ledger=ledger, dataset="people", settings=LEAST, name="model"
    )
    again = type(model)(**model.get_params())
    assert again.get_params() == model.get_params()
    real = frame()
    drawn = model.fit(real).sample(2_500, seed=1)
    assert len(drawn) == 2_500
    assert drawn["grade"].cat.ordered
    pd.testing.assert_frame_equal(drawn, model.sample(2_500, seed=1))
    assert not drawn.equals(model.sample(2_500, seed=2))
    share = (real["size"] == 3).mean()
    assert abs((drawn["size"] == 3).mean() - share) < 0.05
    assert model.n_features_in_ == 6
    assert model.epsilon_ == 5
    assert len(ledger.show("people").attempts) == 1
    with pytest.raises(dpdist.errors.SpecError, match="not fitted"):
        again.sample(1)
    with pytest.raises(dpdist.errors.OutputExists):
        again.fit(real)
    with pytest.raises(dpdist.errors.ReleaseConflict):
        again.set_params(settings={**LEAST, "output.path": "elsewhere"}).fit(real)
    assert len(ledger.show("people").attempts) == 1


def test_a_synthesizer_can_be_cloned(ledger: dpdist.Ledger) -> None:
    base = pytest.importorskip("sklearn.base")
    model = dpdist.Synthesizer(SCHEMA, epsilon=5, delta=1e-7, ledger=ledger, dataset="people", settings=LEAST)
    assert base.clone(model).get_params()["epsilon"] == 5
    assert model.set_params(epsilon=1).epsilon == 1


def test_other_readers_read_the_folder_of_a_release(ledger: dpdist.Ledger) -> None:
    import pyarrow.dataset

    release = dpdist.release(spec(), data=frame(), ledger=ledger)
    assert pyarrow.dataset.dataset("out/first").to_table().num_rows == 3_000
    assert pq.read_table("out/first").num_rows == 3_000
    assert len(pd.read_parquet("out/first")) == len(release)
    assert len(pytest.importorskip("dask.dataframe").read_parquet("out/first/data")) == len(release)


def test_settings_and_files_as_on_the_command_line(ledger: dpdist.Ledger) -> None:
    frame().to_parquet("table.parquet")
    settings = {"synthesis.records": 1_500}
    release = dpdist.release(spec(), data=Path("table.parquet"), ledger=ledger.url, settings=settings)
    assert len(release) == 1_500
    assert (
        dpdist.release(spec(), data="table.parquet", ledger=ledger, settings=settings, attempt="once").path
        == release.path
    )
