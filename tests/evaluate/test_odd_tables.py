"""Tables that nobody has in mind: tiny, constant, huge, with labels that are not to be shown; hold-outs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from releases import KEY, table
from typer.testing import CliRunner

from dpdist import errors
from dpdist.cli import app
from dpdist.data.count import MAX_PAIR_CELLS, pair_cells
from dpdist.evaluation.records import stacked, take, view_of
from dpdist.evaluation.request import Request
from dpdist.evaluation.run import Evaluated, run_evaluation
from dpdist.evaluation.utility.checks import holdout_section
from dpdist.ledger import Books
from dpdist.lifecycle.run import run_release
from dpdist.privacy.arrays import Codes
from dpdist.spec.reader import load
from dpdist.spec.schema import Schema
from tests.evaluate.conftest import Made

pytestmark = pytest.mark.usefixtures("few_trees")
SMALL: dict[str, Any] = {"train": 100, "test": 100}


def released(folder: Path, attributes: list[dict[str, Any]], columns: dict[str, Any], *, records: int = 600) -> Path:
    """A release of independent marginals of a table."""
    rows = len(next(iter(columns.values())))
    pq.write_table(pa.table(columns), folder / "table.parquet")
    pq.write_table(pa.table(columns).slice(0, rows // 3), folder / "holdout.parquet")
    url = f"sqlite:///{folder}/ledger.db"
    ledger = Books.open(url)
    ledger.create_dataset("odd", epsilon=9, delta="1e-5")
    ledger.close()
    tree = {
        "kind": "plausible-deniability",
        "name": "odd",
        "dataset": "odd",
        "schema": {"attributes": attributes},
        "data": {"path": str(folder / "table.parquet"), "minimum_records": rows},
        "output": {"path": str(folder / "release"), "values": "labels"},
        "ledger": url,
        "work": str(folder / "work"),
        "cluster": {"mode": "threads"},
        "privacy": {"model": {"epsilon": 2, "delta": 1e-7}},
        "model": {"structure": "independent"},
        "split": {"structure": 0, "parameters": 1, "seeds": 0},
        "synthesis": {"records": records},
    }
    run_release(load(tree), fixed_key=KEY)
    return folder / "release"


def evaluated(release: Path, folder: Path, **changes: Any) -> Evaluated:
    settings: dict[str, Any] = {
        "release": str(release),
        "against": (str(folder / "table.parquet"),),
        "holdout": (str(folder / "holdout.parquet"),),
        "output": folder / "page",
        **SMALL,
        "cluster": "threads",
    }
    done = run_evaluation(Request(**(settings | changes)))
    text = Path(done.figures).read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    for item in json.loads(text)["sections"].values():
        assert "nan" not in item["verdict"].split()
    return done


def test_no_row(made: Made, tmp_path: Path) -> None:
    pq.write_table(table(10).slice(0, 0), tmp_path / "table.parquet")
    with pytest.raises(errors.EmptyTable, match="no rows"):
        evaluated(Path(made.release), tmp_path, holdout=())


def test_a_few_rows(made: Made, tmp_path: Path) -> None:
    rows = 5
    pq.write_table(table(30_000).slice(0, rows), tmp_path / "table.parquet")
    pq.write_table(table(30_000).slice(100, rows), tmp_path / "holdout.parquet")
    done = evaluated(Path(made.release), tmp_path)
    states = {item["name"]: item for item in done.verdicts}
    for name in ("models", "membership", "copies", "linkage", "inference"):
        assert states[name]["verdict"].startswith("Does not apply"), states[name]


def test_one_attribute(tmp_path: Path) -> None:
    attributes = [{"name": "only", "kind": "categorical", "values": ["a", "b", "c"]}]
    release = released(tmp_path, attributes, {"only": np.array(["a", "b", "c"])[np.arange(3000) % 3]})
    states = {item["name"]: item for item in evaluated(release, tmp_path).verdicts}
    assert states["models"]["verdict"].startswith("Does not apply")
    assert states["marginals"]["state"] in ("good", "fair")


def test_constant_and_huge_columns(tmp_path: Path) -> None:
    """One value declared; two declared, one taken; 65,536 codes; labels that are odd to show."""
    rng = np.random.default_rng(0)
    odd = ["", "$\\frac{", "</svg><script>alert(1)</script>", "a\u202eb", "x" * 300, "\u0007bell", "a\nb", "{{7*7}}"]
    attributes = [
        {"name": "one", "kind": "categorical", "values": ["always"]},
        {"name": "same", "kind": "categorical", "values": ["yes", "no"]},
        {"name": "huge", "kind": "integer", "bounds": [0, 65535]},
        {"name": "odd \u0001 <b>", "kind": "categorical", "values": list(range(8)), "labels": odd},
    ]
    columns = {
        "one": ["always"] * 3000,
        "same": ["yes"] * 3000,
        "huge": rng.integers(0, 65536, 3000),
        "odd \u0001 <b>": rng.integers(0, 8, 3000),
    }
    done = evaluated(released(tmp_path, attributes, columns), tmp_path)
    page = Path(done.page).read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<b>" not in page
    assert not set(page) & set("\x00\x01\x07\u202e")
    for section in done.verdicts:
        assert section["verdict"].isprintable() or "\u00a0" in section["verdict"]
        assert "\x01" not in section["verdict"]


def test_hundreds_of_attributes_are_looked_at_in_fewer_bins() -> None:
    """As images have: the pairwise tables of 785 attributes of 256 values would take 160 GB."""
    pixels = [{"name": f"p{i}", "kind": "integer", "bounds": [0, 255]} for i in range(784)]
    digit = {"name": "digit", "kind": "categorical", "values": list(range(10))}
    schema = Schema.model_validate({"attributes": [*pixels, digit]})
    view = view_of(schema)
    assert pair_cells(view.sizes) <= MAX_PAIR_CELLS
    assert min(view.sizes) >= 4
    codes = view.axes[0].codes(np.arange(256, dtype=np.uint8))
    assert (np.diff(codes.astype(int)) >= 0).all()
    assert codes.max() == view.axes[0].size - 1
    assert view_of(Schema.model_validate({"attributes": pixels[:20]})).sizes == (256,) * 20


@pytest.mark.parametrize("confidence", ["1.5", "1", "0.3", "nan"])
def test_an_audit_that_is_certain_is_refused(confidence: str, tmp_path: Path) -> None:
    spec = Path(__file__).parents[2] / "deploy/releases/adult.yaml"
    answer = CliRunner().invoke(app, ["audit", str(spec), "--confidence", confidence])
    assert answer.exit_code == 2, answer.output


# --- A hold-out that is not one is found out; one that is, is not


def people(rows: int, rng: np.random.Generator, *, values: int) -> Codes:
    """Records whose attributes depend on each other, a few of them popular."""
    first = np.minimum(rng.geometric(0.2, rows), values - 1)
    rest = [np.where(rng.random(rows) < 0.5, first, rng.integers(0, values, rows)) for _ in range(4)]
    return [column.astype(np.uint8) for column in (first, *rest)]


@pytest.mark.parametrize("values", [2, 6, 40])
def test_a_random_part_of_the_population_is_a_holdout(values: int) -> None:
    for seed in range(15):
        rng = np.random.default_rng([seed, values])
        assert holdout_section(people(6_000, rng, values=values), people(1_500, rng, values=values), seed=seed) is None


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_records_of_the_table_are_no_holdout(share: float) -> None:
    rng = np.random.default_rng(0)
    training, others = people(6_000, rng, values=40), people(2_000, rng, values=40)
    cut = round(share * 2_000)
    mixed = stacked(take(training, np.arange(cut)), take(others, np.arange(cut, 2_000)))
    section = holdout_section(training, mixed, seed=0)
    assert section.state == "bad"
    unlike = section.figures["unlike"]
    assert unlike["hold-out"] < (1 - share / 2) * unlike["real"]


def test_a_table_without_repeated_records() -> None:
    """Made distinct before it was split: nothing is equal on either side."""
    rng = np.random.default_rng(1)
    rows = np.unique(np.stack(people(20_000, rng, values=12), axis=1), axis=0)
    rng.shuffle(rows)
    columns = list(rows.T)
    half = len(rows) // 2
    assert holdout_section(take(columns, np.arange(half)), take(columns, np.arange(half, len(rows))), seed=0) is None


def test_few_records_say_nothing() -> None:
    rng = np.random.default_rng(2)
    training = people(5, rng, values=40)
    assert holdout_section(training, take(training, np.arange(0)), seed=0) is None
    assert holdout_section(training, take(training, np.arange(2)), seed=0) is None


@pytest.mark.usefixtures("undrawn")
def test_a_copy_of_the_table_under_another_name_is_not_used(made: Made, tmp_path: Path) -> None:
    real = table(30_000).slice(0, 3_000)
    pq.write_table(real, tmp_path / "real.parquet")
    pq.write_table(real.take(np.random.default_rng(0).permutation(3_000)[:900]), tmp_path / "copy.parquet")
    asked = Request(
        release=made.release,
        against=(str(tmp_path / "real.parquet"),),
        holdout=(str(tmp_path / "copy.parquet"),),
        output=tmp_path / "page",
        train=60,
        test=60,
        cluster="threads",
    )
    done = run_evaluation(asked)
    states = {item["name"]: item for item in done.verdicts}
    assert states["holdout"]["state"] == "bad"
    for name in ("copies", "membership", "linkage", "inference"):
        assert states[name]["verdict"].startswith("Does not apply")
        assert "not used" in states[name]["verdict"]
    assert json.loads(Path(done.figures).read_text())["sections"]["models"]["figures"]["held_out"] is False
