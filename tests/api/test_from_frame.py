"""From a frame to a release in three lines: types, one charge, what is found, and twenty wrong uses."""

import json
import math
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Command
from releases import KEY

import dpdist
from dpdist import errors
from dpdist.families.base.registry import make_plan
from dpdist.families.synthesis.plan import SynthesisPlan
from dpdist.privacy.arrays import WEIGHT
from dpdist.spec.reader import load
from dpdist.spec.undeclared import undeclared

pd = pytest.importorskip("pandas")
ROWS = 8_000


def people(rows: int = ROWS) -> Any:
    rng = np.random.default_rng(1)
    region = rng.choice(["north", "south", "east"], rows, p=[0.5, 0.3, 0.2]).astype(object)
    region[:3] = "planted-value"
    return pd.DataFrame(
        {
            "customer_id": np.arange(rows),
            "age": rng.integers(18, 91, rows),
            "region": region,
            "plan": pd.Categorical(rng.choice(["a", "b"], rows)),
            "income": np.where(rng.random(rows) < 0.3, 0, np.round(rng.lognormal(10, 0.6, rows), 2)),
            "children": np.where(rng.random(rows) < 0.2, np.nan, rng.poisson(1.2, rows)),
            "smokes": rng.random(rows) < 0.3,
            "joined": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), unit="D"),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        made = tmp_path_factory.mktemp("frames")
        patch.chdir(made)
        patch.delenv("DPDIST_LEDGER", raising=False)
        dpdist.Ledger("others.db").create("others", epsilon=1, delta=1e-8)
        yield made


def asked(frame: Any = None, **changes: Any) -> dpdist.Synthesizer:
    given = {"epsilon": 1, "delta": 1e-9, "drop": ["customer_id"], "public": {"age": (0, 110)}} | changes
    return dpdist.Synthesizer.from_frame(people() if frame is None else frame, **given)


@pytest.fixture(scope="module")
def made(folder: Path) -> dpdist.Synthesizer:
    return asked(name="three-lines").fit(people(), test_key=KEY)


def test_three_lines_charge_once_and_give_the_types_of_the_frame(made: dpdist.Synthesizer) -> None:
    frame, sample = people(), made.sample(3_000)
    assert [str(kind) for kind in sample.dtypes] == [str(kind) for kind in frame.drop(columns="customer_id").dtypes]
    assert len(dpdist.Ledger().show("frame").attempts) == 1
    report = dpdist.verify(made.release_, ledger=dpdist.Ledger())
    assert (report.epsilon, report.verdict) == (1, "verified")
    assert abs((sample["plan"] == "a").mean() - 0.5) < 0.05
    assert abs((sample["income"] == 0).mean() - 0.3) < 0.05
    assert abs(sample["children"].isna().mean() - 0.2) < 0.05
    assert set(sample["children"].dropna() % 1) == {0.0}
    assert abs(sample["age"].median() - 54) < 4
    assert sample["joined"].median().year == 2021
    pd.testing.assert_frame_equal(sample, made.sample(3_000, seed=0))


def test_what_few_records_have_is_not_found(made: dpdist.Synthesizer, folder: Path) -> None:
    made.schema.save("found.yaml")
    text = Path("found.yaml").read_text(encoding="utf-8")
    assert dpdist.Schema.from_yaml("found.yaml") == made.release_.schema
    assert "planted-value" not in text
    assert all(value in text for value in ("north", "south", "east"))
    assert made.release_.manifest.parameters["discovered"]["share_of_mu_squared"] <= 0.6


def test_what_was_found_serves_the_next_release(folder: Path) -> None:
    ledger = dpdist.Ledger("own.db")
    ledger.create("own", epsilon=2, delta=1e-8)
    first = asked(ledger=ledger, dataset="own").fit(people())
    again = first.fit(people())
    assert "discovered" not in again.release_.manifest.parameters
    assert len(ledger.show("own").attempts) == 2


def test_the_noise_of_what_is_found_keeps_its_share(folder: Path) -> None:
    """The sum of 1/s^2 over all histograms is within the share, and with the model within the whole."""
    columns = {"a": "text", "b": "text", "n": "integer", "x": "number", "k": (0, 5_000), "d": "date", "t": "datetime"}
    tree = {
        "kind": "synthesis",
        "name": "found",
        "dataset": "people",
        "schema": {"attributes": [undeclared(name, kind, bins=64) for name, kind in columns.items()]},
        "data": {"path": "t.parquet", "minimum_records": 1_000},
        "output": {"path": "out"},
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "discover": {"columns": list(columns), "share": 0.3},
    }
    plan = make_plan(load(tree))
    assert isinstance(plan, SynthesisPlan)
    assert plan.discovery is not None
    found = plan.discovery
    # steps are asked of the number that need not be an integer, and of the moment that need not be a day
    spent = found.spent(2, 1 + 2 * 5, 2) + found.again**2
    whole = 1 / plan.event.parts()[0].noise_multiplier  # type: ignore[union-attr]
    drawn = (
        2 / found.values**2 + 11 / found.cells**2 + 2 / found.steps**2 + (WEIGHT / found.naming(found.again, 2)[0]) ** 2
    )
    assert 0.29 * whole**2 <= drawn <= spent <= 0.3 * whole**2 * (1 + 1e-9)
    assert plan.mu <= whole
    fine = [(wide, found.fine(wide, 5)) for wide in range(1, 6)]
    assert all(wide / deviation**2 <= 5 / found.cells**2 for wide, deviation in fine)
    known = load(tree | {"schema": plan.spec.presumed, "discover": None})
    final = plan.knowing(known, spent)  # type: ignore[arg-type]
    assert math.hypot(final.choices.mu, final.accuracy_mu) ** 2 + spent <= whole**2
    assert final.event == plan.event


@pytest.mark.parametrize("kind", ["polars", "arrow", "dask", "parquet"])
def test_other_tables_give_what_the_frame_gives(kind: str, made: dpdist.Synthesizer, folder: Path) -> None:
    frame = people().drop(columns=["joined"])
    table = pa.Table.from_pandas(frame)
    pq.write_table(table, folder / "people.parquet")
    given: Any = {
        "polars": lambda: pytest.importorskip("polars").from_pandas(frame),
        "arrow": lambda: table,
        "dask": lambda: pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=3),
        "parquet": lambda: "people.parquet",
    }[kind]()
    ledger = dpdist.Ledger(f"{kind}.db")
    found = asked(given, ledger=ledger, name=kind).fit(given, test_key=KEY)
    assert found.schema.names == made.schema.names[:-1]
    assert len(found.sample(10)) == 10


def test_the_command_line_does_the_same(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    command: Command = request.getfixturevalue("dpdist")
    pq.write_table(pa.Table.from_pandas(people().drop(columns=["joined"])), tmp_path / "shop.parquet")
    done = command("synthesize", "shop.parquet", "--epsilon", "1", "--drop", "customer_id", "--public",
        "age=0..110", "--ledger", "cli.db", "--schema", "shop.yaml")  # fmt: skip
    assert done.code == 0, done.err
    assert "(1, 1e-9)-differential privacy" in done.out
    assert "names and types of 6 columns are taken as public" in done.err
    assert abs(len(dpdist.open_release("releases/shop")) - ROWS) < 1_000
    assert dpdist.Schema.from_yaml("shop.yaml").names[0] == "age"
    for said, words in (("age=18,64", "18..64"), ("age=18-64", "18..64"), ("region=north", "is one value")):
        wrong = command("synthesize", "shop.parquet", "--epsilon", "1", "--drop", "customer_id", "--public", said,
            "--ledger", "cli.db")  # fmt: skip
        assert wrong.code != 0
        assert words in wrong.err


def held(**columns: Any) -> Any:
    return pd.DataFrame({"age": [1, 2], **columns})


WRONG: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
    "an identifier": (errors.SpecError, "drop=['customer_id']", lambda: asked(drop=[])),
    "free text": (errors.SpecError, "free text: remarks", lambda: asked(held(remarks=["a", "b"]), drop=[])),
    "a name": (errors.SpecError, "firstName", lambda: asked(held(firstName=["a", "b"]), drop=[])),
    "a column to drop that is not there": (errors.SpecError, "did you mean 'customer_id'",
        lambda: asked(drop=["custmer_id"])),
    "a public column that is not there": (errors.SpecError, "did you mean 'age'",
        lambda: asked(public={"agee": "text"})),
    "a text to drop": (errors.SpecError, "expected a list", lambda: asked(drop="customer_id")),
    "nothing left": (errors.SpecError, "no column is left", lambda: asked(held(), drop=["age"], public={})),
    "dropped and public": (errors.SpecError, "in both", lambda: asked(drop=["customer_id", "age"])),
    "public as a list": (errors.SpecError, "expected a mapping", lambda: asked(public=["age"])),
    "an unknown kind": (errors.SpecError, "expected bounds such as", lambda: asked(public={"age": "integr"})),
    "bounds the wrong way": (errors.SpecError, "exceeds the upper bound", lambda: asked(public={"age": (110, 0)})),
    "bounds of texts": (errors.SpecError, "two numbers", lambda: asked(public={"age": ("a", "b")})),
    "bounds of a column of texts": (errors.SpecError, "the column holds texts",
        lambda: asked(public={"region": (0, 5)})),
    "numbers for dates": (errors.SpecError, "two dates, such as ('1950-01-01', '2004-12-31')",
        lambda: asked(public={"joined": (1950, 2004)})),
    "dates as integers": (errors.SpecError, "holds datetimes, which are no integers",
        lambda: asked(public={"joined": "integer"})),
    "dates as texts": (errors.SpecError, "holds datetimes, which are no texts",
        lambda: asked(public={"joined": "text"})),
    "a date that may identify": (errors.SpecError, "public={'passport_date': 'datetime'}",
        lambda: asked(held(passport_date=pd.to_datetime(["2020-01-01"] * 2)), drop=[])),
    "one bound": (errors.SpecError, "two numbers", lambda: asked(public={"age": (5,)})),
    "values twice": (errors.SpecError, "declared twice", lambda: asked(public={"region": ["north", "north"]})),
    "no values": (errors.SpecError, "declare its `values`", lambda: asked(public={"region": []})),
    "two numbers as a list": (errors.SpecError, "a tuple, (0, 110), on the command line 0..110; two values are",
        lambda: asked(public={"age": [0, 110]})),
    "values that do not fit": (errors.SpecError, "'18-64' is none; bounds are",
        lambda: asked(public={"age": ["18-64"]})),
    "one value": (errors.SpecError, "'north' is one value", lambda: asked(public={"region": ["north"]})),
    "values that are no texts": (errors.SpecError, "1234 is none: quote it",
        lambda: asked(public={"region": [1234, 5]})),
    "parts as values": (errors.SpecError, "values of numbers are integers",
        lambda: asked(public={"income": [0.5, 1, 2]})),
    "values of booleans": (errors.SpecError, "holds booleans", lambda: asked(public={"smokes": ["yes", "no"]})),
    "two days as a list": (errors.SpecError, "on the command line 2020-01-01..2021-01-01",
        lambda: asked(public={"joined": ["2020-01-01", "2021-01-01"]})),
    "a set": (errors.SpecError, "a set has no order", lambda: asked(public={"region": {"north", "south"}})),
    "nothing said": (errors.SpecError, "leave it out of public", lambda: asked(public={"region": None})),
    "no finite bounds": (errors.SpecError, "finite numbers", lambda: asked(public={"age": (0, math.inf)})),
    "a bound that is nan": (errors.SpecError, "finite numbers", lambda: asked(public={"age": (math.nan, 5)})),
    "a key that is misspelt": (errors.SpecError, "public: region: valuse: there is no such setting here; did you",
        lambda: asked(public={"region": {"valuse": ["north"]}})),
    "texts of numbers": (errors.SpecError, "holds numbers, which are no texts",
        lambda: asked(public={"income": "text"})),
    "names that are numbers": (errors.SpecError, "the column 3 has a name",
        lambda: asked(pd.DataFrame({3: [1, 2]}), drop=[])),
    "names of two levels": (errors.SpecError, "'_'.join",
        lambda: asked(pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([("a", 1)])), drop=[])),
    "intervals": (errors.SpecError, "'band' holds intervals",
        lambda: asked(held(band=pd.cut(pd.Series([1, 2]), 2)), drop=[])),
    "complex numbers": (errors.SpecError, "'z' holds complex numbers", lambda: asked(held(z=[1j, 2]), drop=[])),
    "numbers of texts": (errors.SpecError, "holds texts", lambda: asked(public={"region": "number"})),
    "a column of lists": (errors.SpecError, "'tags' holds list", lambda: asked(held(tags=[[1], [2]]), drop=[])),
    "several types": (errors.ColumnMismatch, "several types", lambda: asked(held(mix=["a", 2.5]), drop=[])),
    "no table": (errors.SpecError, "is not one of these", lambda: asked({"age": [1]})),
    "no file": (errors.DataNotFound, "nowhere.parquet", lambda: asked("nowhere.parquet")),
    "no epsilon": (errors.SpecError, "epsilon", lambda: asked(epsilon=0)),
    "a delta that is none": (errors.SpecError, "delta", lambda: asked(delta=1.0)),
    "a setting that is none": (errors.SpecError, "did you mean 'records'",
        lambda: asked(settings={"synthesis.record": 5})),
    "eps": (TypeError, "did you mean 'epsilon'?", lambda: asked(eps=1)),
    "eps of a synthesizer": (TypeError, "Synthesizer() has no argument 'eps'; did you mean 'epsilon'?",
        lambda: dpdist.Synthesizer({}, eps=1)),  # type: ignore[call-arg]
    "eps of a release": (TypeError, "release() has no argument 'eps'; there are spec, data",
        lambda: dpdist.release({}, eps=1)),  # type: ignore[call-arg]
    "columns to drops": (TypeError, "did you mean 'drop'?", lambda: asked(drops=[])),
    "a seed that is misspelled": (TypeError, "did you mean 'seed'?",
        lambda: asked().sample(5, seeds=1)),  # type: ignore[call-arg]
    "another frame": (errors.ColumnMismatch, "'region' is missing",
        lambda: asked(ledger=dpdist.Ledger("others.db"), dataset="others").fit(people().drop(columns="region"))),
    "a second release": (errors.BudgetExceeded, "has (1, 1e-9) for all its releases, 1 charge before this one, and",
        lambda: asked().fit(people())),
}  # fmt: skip


@pytest.mark.parametrize("use", WRONG)
def test_a_wrong_use_is_one_clear_error_and_costs_nothing(use: str, made: dpdist.Synthesizer) -> None:
    kind, words, act = WRONG[use]
    before = dpdist.Ledger().show("frame").attempts
    with pytest.raises(kind) as caught:
        act()
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2
    assert "planted-value" not in str(caught.value)
    assert dpdist.Ledger().show("frame").attempts == before
    assert not dpdist.Ledger("others.db").show("others").attempts


def test_true_and_false_may_be_said_to_be_public(folder: Path) -> None:
    frame = held(member=[True, False])
    said, plain = (asked(frame, drop=[], public={"age": (0, 110)} | more) for more in ({"member": [True, False]}, {}))
    assert said.schema == plain.schema
    (member,) = (one for one in said.schema.attributes if one.name == "member")  # type: ignore[union-attr]
    assert member.values == ("false", "true")


def test_zeros_within_public_bounds_are_released_as_zeros(folder: Path) -> None:
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"gain": np.where(rng.random(ROWS) < 0.9, 0, rng.integers(1, 100_000, ROWS))})
    frame["size"] = pd.Categorical(rng.choice(["large", "small"], ROWS), ["small", "large"], ordered=True)
    frame["rent"] = np.where(frame["gain"] > 0, 0.0, rng.lognormal(6, 1, ROWS))
    given = {"public": {"gain": (0, 99_999), "rent": (0, 100_000)}, "drop": [], "ledger": dpdist.Ledger("zeros.db")}
    drawn = asked(frame, **given).fit(frame, test_key=KEY).sample(3_000)
    assert abs((drawn["gain"] == 0).mean() - 0.9) < 0.05
    assert abs((drawn["rent"] == 0).mean() - 0.1) < 0.05
    assert (drawn["size"] == "small").mean() > 0.4
    assert drawn["size"].min() == "small"


def dated(rows: int = 3_000) -> Any:
    rng = np.random.default_rng(3)
    born = pd.Timestamp("1950-01-01") + pd.to_timedelta(rng.integers(0, 20_000, rows), unit="D")
    seen = pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 500 * 86_400, rows), unit="s")
    return pd.DataFrame(
        {
            "day": born.date,
            "born": born.astype("datetime64[ns]"),
            "seen": seen,
            "zoned": seen.tz_localize("Europe/Berlin", ambiguous=False, nonexistent="shift_forward"),
            "member": rng.random(rows) < 0.3,
        }
    )


@pytest.mark.parametrize("kind", ["pandas", "csv", "parquet"])
def test_dates_and_moments_are_found_as_such(kind: str, folder: Path) -> None:
    frame = dated()
    frame.loc[0, ["day", "born"]] = None
    frame.to_csv("dated.csv", index=False, na_rep="NA")
    pq.write_table(pa.Table.from_pandas(frame), "dated.parquet")
    given: Any = frame if kind == "pandas" else f"dated.{kind}"
    ledger = dpdist.Ledger(f"dated-{kind}.db")
    ledger.create("own", epsilon=4, delta=1e-8)
    account: Any = {"delta": 1e-9, "ledger": ledger, "dataset": "own"}
    made = dpdist.Synthesizer.from_frame(given, epsilon=2, name=f"dated-{kind}", **account).fit(given, test_key=KEY)
    assert [one.kind for one in made.schema.attributes] == ["date", "date", "datetime", "datetime", "categorical"]
    day, born, seen, zoned, _ = made.schema.attributes
    for one, first, last in (
        (day, "1950", "2004"),
        (born, "1950", "2004"),
        (seen, "2023", "2024"),
        (zoned, "2023", "2024"),
    ):
        low, high = map(one.shown, one.bounds)
        assert abs(int(low[:4]) - int(first)) <= 5
        assert abs(int(high[:4]) - int(last)) <= 5
    drawn = made.sample(1_000, where=f"day >= '{day.shown(day.bin_edges[20])}'")
    drawn = drawn if kind == "pandas" else pd.DataFrame(drawn.to_pandas())
    assert str(min(drawn["day"]))[:10] >= day.shown(day.bin_edges[20])
    hours = pd.to_datetime(drawn["seen"]).dt.hour
    assert set(hours) == set(range(24))
    assert set(pd.to_datetime(drawn["born"]).dt.hour) == {0}
    if kind != "csv":  # whose texts have no zone in common
        assert str(drawn["zoned"].dtype).endswith("Europe/Berlin]")
    types = {name: str(values.dtype) for name, values in made.release_.to_pandas().items()}
    assert all(types[name].startswith("datetime64") for name in ("day", "born", "seen", "zoned"))
    fields = json.loads(Path(made.release_.path, "_datapackage.json").read_text())["resources"][0]["schema"]["fields"]
    assert [field["type"] for field in fields[:4]] == ["date", "date", "datetime", "datetime"]
    made.schema.save("dated.yaml")
    again = dpdist.Synthesizer("dated.yaml", epsilon=1, settings={"data.minimum_records": 1_000}, **account)
    assert again.fit(given, test_key=KEY).release_.schema == made.schema


def test_the_command_line_takes_dates_and_booleans_of_a_text_file(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    command: Command = request.getfixturevalue("dpdist")
    frame = dated(1_000)[["day", "member"]].rename(columns={"day": "DATE"})
    frame.to_csv(tmp_path / "unrate.csv", index=False)
    done = command("synthesize", "unrate.csv", "--epsilon", "1", "--public", "DATE=1948-01-01..2024-12-01", "--ledger",
        "cli.db", "--schema", "unrate.yaml")  # fmt: skip
    assert done.code == 0, done.err
    found, member = dpdist.Schema.from_yaml("unrate.yaml").attributes
    assert (found.kind, *map(found.shown, found.bounds or ())) == ("date", "1948-01-01", "2024-12-01")
    assert member.values == ("false", "true")
    shares = dpdist.open_release("releases/unrate").to_pandas()["member"].value_counts(normalize=True)
    assert 0.1 < shares[True] < 0.5
    wrong = command("synthesize", "unrate.csv", "--epsilon", "1", "--public", "DATE=1948..2024", "--ledger", "no.db")
    assert "('1950-01-01', '2004-12-31')" in wrong.err
    asked = ("--dataset", "frame", "--epsilon", "1", "--delta", "1e-9", "--ledger", "no.db")
    plain = command("schema", "discover", "unrate.csv", "out", "--column", "DATE=1950-01-01..2004-12-31", *asked)
    assert "bounds such as 0..99" in " ".join(plain.err.split())
    assert not (tmp_path / "no.db").exists() or not dpdist.Ledger("no.db").show("frame").attempts


def test_a_far_day_that_stands_for_none_is_kept(made: dpdist.Synthesizer) -> None:
    far = date(9999, 12, 31)
    table = pa.table(
        {"until": pa.array([far if k % 5 < 2 else date(2020, 1 + k % 12, 1 + k % 28) for k in range(4_000)])}
    )
    given = {"epsilon": 2, "delta": 1e-9, "ledger": dpdist.Ledger("days.db")}
    drawn = dpdist.Synthesizer.from_frame(table, **given).fit(table, test_key=KEY).sample(2_000)
    assert drawn.schema.field("until").type == pa.date32()
    assert abs(drawn["until"].to_pylist().count(far) / 2_000 - 0.4) < 0.05


def test_days_have_public_bounds(made: dpdist.Synthesizer) -> None:
    day, moment = (date(2020, 1, 1), "2020-03-31"), ("2020-01-01", pd.Timestamp("2020-03-31 12:00"))
    ends = []
    for said in (day, moment, tuple(pd.Timestamp(end, tz="UTC") for end in day)):
        joined = asked(public={"joined": said}).schema.attributes[-1]  # type: ignore[union-attr]
        ends.append([joined.kind, *map(joined.shown, joined.bounds or ())])
    assert ends[0] == ["datetime", "2020-01-01 00:00:00", "2020-03-31 23:59:59"]
    assert ends[2] == ["datetime", "2020-01-01 00:00:00", "2020-03-31 00:00:00"]
    times = pa.table({"at": pa.array([0], pa.timestamp("ns", "Asia/Tokyo"))})
    said = (pd.Timestamp("2020-06-01", tz="UTC"), pd.Timestamp("2020-06-02", tz="UTC"))
    (own,) = dpdist.Synthesizer.from_frame(times, epsilon=1, delta=1e-9, public={"at": said}).schema.attributes  # type: ignore[union-attr]
    assert [*map(own.shown, own.bounds or ())] == ["2020-06-01 09:00:00", "2020-06-02 09:00:00"]
    assert ends[1] == ["datetime", "2020-01-01 00:00:00", "2020-03-31 12:00:00"]
    table = pa.table({"day": pa.array([date(2020, 1, 1)])})
    given = dpdist.Synthesizer.from_frame(table, epsilon=1, delta=1e-9, public={"day": day})
    assert given.schema.attributes[0].bounds == (18_262, 18_352)  # type: ignore[union-attr]
    with pytest.raises(errors.SpecError, match="public: joined"):
        asked(public={"joined": ("yesterday", "today and more")})


def test_what_lies_outside_of_bounds_that_are_found_is_said(folder: Path) -> None:
    rng = np.random.default_rng(3)
    far = (10 ** rng.uniform(4, 14, 4_000)).astype(int)
    frame = pd.DataFrame({"fee": np.where(rng.random(4_000) < 0.06, far, rng.integers(100, 200, 4_000))})
    frame["none"], frame["far"], frame["all"] = 0.0, np.inf, 1e300
    frame["large"] = 2**62 + 5
    ledger = dpdist.Ledger("outside.db")
    made = asked(frame, public={}, drop=[], ledger=ledger).fit(frame, test_key=KEY)
    (caution,) = (text for text in made.release_.manifest.cautions if "'fee'" in text)
    assert "about 8 % (+-3 %)" in caution
    assert "fee 8 % (+-3 %)" in repr(made)
    assert set(made.sample(50)["none"]) == {0.0}
    bounds = {a.name: a.bounds for a in made.release_.schema.attributes}
    assert all(bounds[name][1] > 2**61 for name in ("far", "all", "large"))


def test_what_is_public_may_be_an_array_or_keys(folder: Path) -> None:
    frame = held(kids=[0, 5], z=[1j, 2])
    given = {"public": {"age": {"bounds": (0, 9)}, "kids": np.arange(6)}, "drop": ["z"]}
    age, kids = asked(frame, **given).schema.attributes  # type: ignore[union-attr]
    assert (age.kind, age.bounds) == ("integer", (0, 9))
    assert kids.values == (0, 1, 2, 3, 4, 5)
    _, kids = asked(frame, **given | {"public": {"kids": {"values": [0, 5]}}}).schema.attributes  # type: ignore[union-attr]
    assert (kids.kind, kids.values) == ("categorical", (0, 5))


def graded(rows: int = 3_000) -> Any:
    rng = np.random.default_rng(4)
    grade = rng.choice(["high", "low", "mid"], rows, p=[0.2, 0.45, 0.35]).astype(object)
    grade[:40] = [f"rare {k}" for k in range(40)]
    order = ["low", "mid", "high", *(f"rare {k}" for k in range(40))]
    kids = pd.Categorical(rng.integers(0, 4, rows))
    return pd.DataFrame(
        {"grade": pd.Categorical(grade, order, ordered=True), "shop": pd.Categorical(grade), "kids": kids}
    )


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_types_of_a_sample_do_not_depend_on_its_size(kind: str, folder: Path) -> None:
    """Categories are those of the release: in the order of their type, then the others."""
    frame = graded()
    given = {"drop": [], "public": {"shop": ["mid", "low", "high"]}, "epsilon": 3}
    if kind == "polars":
        polars = pytest.importorskip("polars")
        enum = polars.Enum(frame["grade"].cat.categories.tolist())
        frame = polars.from_pandas(frame).with_columns(polars.col("grade").cast(polars.String).cast(enum))
    made = asked(frame, **given, ledger=dpdist.Ledger(f"graded-{kind}.db")).fit(frame, test_key=KEY)
    few, many = made.sample(1), made.sample(2_000)
    assert list(few.dtypes) == list(many.dtypes)
    found = [value for value in ("low", "mid", "high", "other values") if value in made.schema.attributes[0].values]
    assert found[:3] == ["low", "mid", "high"]
    if kind == "polars":
        assert few.schema["grade"] == polars.Enum(found)
        return
    assert few["grade"].dtype == pd.CategoricalDtype(found, ordered=True)
    assert many["shop"].cat.categories.tolist() == ["mid", "low", "high"]
    assert set(many["kids"].cat.categories) >= {0, 1, 2, 3}


def test_digits_after_a_zero_are_texts(folder: Path) -> None:
    rng = np.random.default_rng(5)
    lines = [f"{rng.choice([1234, 20115, 99501]):05},{k},{2**62 + k}" for k in rng.integers(0, 9, 2_000)]
    Path("zips.csv").write_text("\n".join(["zipcode,kids,far", *lines]))
    ledger = dpdist.Ledger("zips.db")
    made = asked("zips.csv", drop=[], public={"kids": (0, 8)}, ledger=ledger).fit("zips.csv", test_key=KEY)
    assert {"01234", "20115", "99501"} <= set(made.sample(500)["zipcode"].to_pylist())
    assert made.schema.attributes[2].bounds[1] == 2**62 - 1
    with pytest.raises(errors.SpecError, match="1234 is none: quote it"):
        asked("zips.csv", drop=[], public={"zipcode": [1234, 20115]})
    assert asked("zips.csv", drop=[], public={"zipcode": (0, 99_999)}).schema.attributes[0].kind == "integer"


def test_odd_columns_come_back_in_their_types(folder: Path) -> None:
    """Of integers that cannot be missing none is; what has no name among numbers is missing."""
    rng, rows = np.random.default_rng(2), 1_500
    moments = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 40_000_000, rows), unit="s")
    frame = pd.DataFrame({"code": rng.integers(1, 4, rows), "at": moments.astype("datetime64[ns]")})
    frame["flag"] = pd.Categorical(rng.random(rows) < 0.4)
    frame["number"], frame["small"] = rng.integers(0, 9, rows), rng.integers(0, 90, rows).astype(np.uint8)
    frame["empty"] = None
    frame.loc[3, "at"] = pd.Timestamp.min
    made = asked(frame, public={"code": "text"}, drop=[], ledger=dpdist.Ledger("odd.db")).fit(frame, test_key=KEY)
    for number in (1, 2_000):
        sample = made.sample(number)
        kinds = [str(kind) for kind in sample.drop(columns="code").dtypes]
        assert kinds == ["datetime64[ns]", "category", "int64", "uint8", "object"]
        assert sample["flag"].cat.categories.tolist() == [False, True]
        assert set(sample["code"].dropna()) <= {1, 2, 3}


@pytest.mark.parametrize("wrong", [b"1,2,3\n", b"1,\xff\n", b"1,2\r3\n"])
def test_rows_of_text_files_are_refused_after_the_charge(wrong: bytes, folder: Path, tmp_path: Path) -> None:
    """That a row is refused says something about it; types are public."""
    path, ledger = tmp_path / "rows.csv", dpdist.Ledger(f"sqlite:///{tmp_path}/ledger.db")
    path.write_bytes(b"x,y\n" + b"1,2\n" * 50 + wrong)
    made = asked(str(path), public={}, drop=[], ledger=ledger)
    with pytest.raises(errors.UnreadableFile, match="charge stays spent"):
        made.fit(str(path))
    assert [one.state for one in ledger.show("frame").attempts] == ["drawing"]  # whose charge counts
