"""A refusal is an answer: it depends on nothing that an analyst can ask about a person without a charge."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import CASES, LID, PARTIES, RELATIONAL, SURVEY, Case
from executors import runs_use
from releases import KEY

from dpdist.cluster.executor import InProcess
from dpdist.errors import DpdistError, OutOfDomain, SpecError
from dpdist.families.base.registry import make_plan
from dpdist.ledger import Books
from dpdist.lifecycle.run import run_release
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.validation import override

PRIVATE_CASES = [case for case in CASES if "in-process" in case.modes and case not in (LID, PARTIES, RELATIONAL)]
"""Those that a data set without a contract admits."""

families = pytest.mark.parametrize("case", PRIVATE_CASES, ids=lambda case: case.name)


def status(spec: ReleaseSpec, *, epsilon: str = "100") -> tuple[str, list[str]]:
    """How a release ends, and the states of its charges."""
    with closing(Books.open(spec.ledger)) as ledger:
        if not ledger.datasets():
            ledger.create_dataset("people", epsilon=epsilon, delta="1e-3", guarantees=("dp", "pd-per-record", "pml"))
    try:
        with runs_use(InProcess()):
            run_release(spec, fixed_key=KEY)
        ended = "published"
    except DpdistError as error:
        ended = type(error).__name__
    with closing(Books.open(spec.ledger, create=False)) as ledger:
        return ended, [attempt.state for attempt in ledger.show("people").attempts]


PEOPLE = [("north", 34, 1), ("south", 61, 2), ("west", 34, 2)]


def ask(folder: Path, people: list[tuple[str, int, int]], **person: Any) -> tuple[str, list[str]]:
    """A histogram whose policies drop everybody but a described person."""
    folder.mkdir()
    columns = zip(("region", "age", "income"), zip(*people, strict=True), strict=True)
    pq.write_table(pa.table({name: list(values) for name, values in columns}), folder / "t.parquet")
    attributes = [
        {"name": name, "kind": "categorical", "values": [value], "out_of_domain": "drop"}
        for name, value in person.items()
    ]
    tree: dict[str, Any] = {
        "kind": "histogram",
        "name": "question",
        "dataset": "people",
        "schema": {"attributes": attributes},
        "data": {"path": str(folder / "t.parquet"), "minimum_records": 1, "extra_columns": "ignore"},
        "output": {"path": str(folder / "out")},
        "ledger": f"sqlite:///{folder}/ledger.db",
        "work": str(folder / "work"),
        "privacy": {"epsilon": "0.003"},
        "histograms": "each column",
    }
    return status(load(tree))


def test_policies_that_leave_nobody_do_not_tell(tmp_path: Path) -> None:
    """Membership, and each attribute of a person who is known by the others."""
    there = ask(tmp_path / "there", PEOPLE, region="north", age=34, income=1)
    gone = ask(tmp_path / "gone", PEOPLE[1:], region="north", age=34, income=1)
    other = ask(tmp_path / "other", PEOPLE, region="north", age=34, income=2)
    assert there == gone == other == ("published", ["committed"])


def look(folder: Path, lines: list[str], *, epsilon: str, **csv: Any) -> tuple[str, list[str]]:
    """A histogram of a CSV file, of which the spec says where its first line is."""
    folder.mkdir()
    (folder / "t.csv").write_text("\n".join(["sex,age", *lines]) + "\n")
    tree: dict[str, Any] = {
        "kind": "histogram",
        "name": "question",
        "dataset": "people",
        "schema": {"attributes": [{"name": "m", "kind": "integer", "bounds": [0, 120], "out_of_domain": "clip"}]},
        "data": {"path": str(folder / "t.csv"), "minimum_records": 1, "extra_columns": "ignore", "csv": csv},
        "output": {"path": str(folder / "out")},
        "ledger": f"sqlite:///{folder}/ledger.db",
        "work": str(folder / "work"),
        "privacy": {"epsilon": epsilon},
        "histograms": "each column",
    }
    return status(load(tree), epsilon="1")


@pytest.mark.parametrize(
    "csv",
    [
        {"skip_rows": 2},
        {"comment": "f"},
        {"header": False, "columns": ["m", "n"], "skip_rows": 3},
        {"header": False, "columns": ["m", "n"]},
    ],
)
def test_no_line_of_a_file_is_looked_at_without_a_charge(tmp_path: Path, csv: dict[str, Any]) -> None:
    there, gone = ["f,30", "m,31", "f,32"], ["f,30", "f,32"]
    asked = {name: look(tmp_path / name, lines, epsilon="20", **csv) for name, lines in (("a", there), ("b", gone))}
    assert asked["a"] == asked["b"] == ("BudgetExceeded", [])  # a charge that is refused anyway buys nothing
    for name, lines in (("c", there), ("d", gone), ("e", ["f,30,1", *gone])):
        ended, charges = look(tmp_path / name, lines, epsilon="0.5", **csv)
        assert charges == (["committed"] if ended == "published" else ["drawing"]), ended


def missing(case: Case, rows: int) -> pa.Table:
    """A table without a record that the policy `missing: drop` keeps."""
    table = case.table(rows)
    place, name = 1, table.column_names[1]
    return table.set_column(place, name, pa.nulls(rows, table.schema.types[place]))


def dropping(case: Case) -> dict[str, Any]:
    """The schema of a case, where it declares one, with the policy `missing: drop`."""
    if "schema" not in case.settings or "discover" in case.settings:
        return {}
    schema = case.settings["schema"]
    return {"schema": {"attributes": [{**attribute, "missing": "drop"} for attribute in schema["attributes"]]}}


@families
@pytest.mark.parametrize("how", ["all dropped", "no rows"])
def test_a_table_without_records_is_no_answer(case: Case, how: str, tmp_path: Path) -> None:
    """It is released with noise, or a noisy check that is charged refuses it."""
    table = missing(case, 50) if how == "all dropped" else case.table(50).slice(0, 0)
    case.write(tmp_path, table)
    ended, states = status(case.spec(tmp_path, **dropping(case)))
    assert (ended, states) in (("published", ["committed"]), ("CheckFailed", ["drawing"]))


@pytest.mark.parametrize("case", [case for case in PRIVATE_CASES if case.bad is not None], ids=lambda case: case.name)
def test_a_value_outside_its_domain_is_refused_at_the_charge(case: Case, tmp_path: Path) -> None:
    """The domain is the analyst's choice: whether a value lies in it is an answer, and the charge stays."""
    case.write(tmp_path, case.spoilt(case.table(case.rows)))
    spec = case.spec(tmp_path)
    assert status(spec) == ("OutOfDomain", ["drawing"])
    with pytest.raises(OutOfDomain, match="The charge stays spent"), runs_use(InProcess()):
        run_release(spec, fixed_key=KEY, attempt="resume")
    assert status(spec)[1] == ["drawing"]


def test_the_number_of_kept_records_is_not_compared_exactly(tmp_path: Path) -> None:
    """Entropies take the number of records for public under replacement, so no policy may decide it."""
    tree: dict[str, Any] = {
        "kind": "histogram",
        "name": "question",
        "dataset": "people",
        "schema": {"attributes": [{**SURVEY["attributes"][1], "out_of_domain": "drop"}, SURVEY["attributes"][4]]},
        "data": {"path": str(tmp_path / "none"), "minimum_records": 100_000, "extra_columns": "ignore"},
        "output": {"path": str(tmp_path / "out")},
        "privacy": {"epsilon": 1, "adjacency": "replacement"},
        "histograms": [{"columns": ["grade"]}],
        "entropies": {"orders": [1], "share": "1/2"},
    }
    with pytest.raises(SpecError, match="'region'"):
        make_plan(load(tree))
    make_plan(load(override(tree, {"privacy": {"epsilon": 1, "adjacency": "add/remove", "delta": 1e-6}})))
