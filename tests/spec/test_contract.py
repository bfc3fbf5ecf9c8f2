"""Contracts of data sets: what is a part of one, and what the ledger admits under one."""

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from commands import Command
from releases import KEY

from dpdist import errors
from dpdist.data.encode import ColumnEncoder
from dpdist.data.report import ABOVE, BELOW, MISSING
from dpdist.families.base.registry import make_plan
from dpdist.ledger import Books
from dpdist.ledger.statement import budget_sentence
from dpdist.lifecycle.run import run_release
from dpdist.privacy.events import Gaussian
from dpdist.spec.attribute import Attribute
from dpdist.spec.contract import Contract
from dpdist.spec.part import departures
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.schema import Schema

ATTRIBUTES: dict[str, dict[str, Any]] = {
    "job": {"kind": "categorical", "values": ["nurse", "cook", "clerk"], "aliases": {"chef": "cook"}},
    "age": {"kind": "integer", "bounds": [0, 99], "missing": "drop"},
    "pay": {"kind": "number", "bounds": [0, 10], "bins": {"count": 10}, "out_of_domain": "clip"},
    "size": {"kind": "number", "bounds": [0, 10]},
    "rank": {"kind": "ordinal", "values": [1, 2, 3], "missing": {"category": "none"}},
}


def schema(**changes: dict[str, Any]) -> dict[str, Any]:
    """The schema of the contract, or attributes of it with changes."""
    chosen = {name: {**ATTRIBUTES[name], **changed} for name, changed in changes.items()} or ATTRIBUTES
    return {"attributes": [{"name": name, **fields} for name, fields in chosen.items()]}


def contract(folder: Path, **changes: Any) -> Contract:
    tree = {
        "schema": schema(),
        "data": {"path": str(folder / "people.parquet")},
        "minimum_records": 50,
        "epsilon": 4,
        "delta": "1e-6",
    }
    return Contract.model_validate({**tree, **changes})


def spec(folder: Path, table: dict[str, Any], **changes: Any) -> ReleaseSpec:
    tree = {
        "kind": "histogram",
        "name": "first",
        "dataset": "people",
        "schema": table,
        "data": {"path": str(folder / "people.parquet"), "minimum_records": 50, "extra_columns": "ignore"},
        "output": {"path": str(folder / "out")},
        "ledger": f"sqlite:///{folder}/ledger.db",
        "work": str(folder / "work"),
        "privacy": {"epsilon": 1},
        "histograms": "each column",
    }
    return load({**tree, **changes})


def people(folder: Path, rows: int = 60) -> None:
    jobs = ["nurse", "chef", "cook", "clerk"]
    table = {
        "job": [jobs[i % 4] for i in range(rows)],
        "age": [i % 100 for i in range(rows)],
        "pay": [float(i % 12) for i in range(rows)],
        "size": [float(i % 10) for i in range(rows)],
        "rank": [1 + i % 3 for i in range(rows)],
    }
    pq.write_table(pa.table(table), folder / "people.parquet")


PARTS: list[dict[str, dict[str, Any]]] = [
    {"job": {}},
    {"job": {"values": ["nurse", "other"], "aliases": {"cook": "other", "clerk": "other", "chef": "other"}}},
    {"job": {"values": ["nurse", "cook"], "aliases": {"clerk": "cook", "chef": "cook"}}},
    {"job": {"labels": ["a", "b", "c"], "buckets": {"groups": [["nurse"], ["cook", "clerk"]]}}},
    {"age": {"bins": {"edges": [0, 18, 65]}}},
    {"age": {}, "pay": {"bins": {"edges": [0, 5]}}},
    {"size": {"bins": {"count": 7}}},
    {"rank": {}},
]

OTHERS: list[tuple[dict[str, dict[str, Any]], str]] = [
    ({"job": {"out_of_domain": "drop"}}, "out_of_domain"),
    ({"job": {"missing": "drop"}}, "missing values"),
    ({"job": {"missing_values": ["nurse"]}}, "missing values"),
    ({"job": {"values": ["nurse", "cook"]}}, "left out"),
    ({"job": {"values": ["nurse", "cook", "clerk"], "aliases": {}}}, "left out"),
    ({"job": {"values": ["nurse", "cook", "clerk"], "aliases": {"chef": "nurse"}}}, "spellings"),
    ({"job": {"aliases": {"chef": "cook", "king": "cook"}}}, "not declared"),
    ({"job": {"kind": "ordinal"}}, "kind"),
    ({"age": {"bounds": [0, 50]}}, "bounds"),
    ({"age": {"missing": "refuse"}}, "missing values"),
    ({"age": {"out_of_domain": "clip"}}, "out_of_domain"),
    ({"pay": {"bins": {"count": 7}}}, "bins"),
    ({"pay": {"bins": None}}, "bins"),
    ({"rank": {"missing": {"category": "other"}}}, "missing values"),
]


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_part(part: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    made = spec(tmp_path, schema(**part)) if "size" not in part or part["size"] else None
    assert made is not None
    assert contract(tmp_path).departures(made, event=None) == []


@pytest.mark.parametrize(("part", "why"), OTHERS, ids=str)
def test_no_part(part: dict[str, dict[str, Any]], why: str, tmp_path: Path) -> None:
    histograms = [{"columns": ["age"]}]  # of a continuous column none exists
    table = schema(**{**part, "age": part.get("age", {})})
    (found,) = contract(tmp_path).departures(spec(tmp_path, table, histograms=histograms), event=None)
    assert why in found


SEX: dict[str, Any] = {
    "name": "sex",
    "kind": "categorical",
    "values": ["m", "f"],
    "aliases": {"M": "m"},
    "missing_values": ["?", " - "],
    "missing": "drop",
}
RANK: dict[str, Any] = {
    "name": "rank",
    "kind": "ordinal",
    "values": [1, 2, 3],
    "missing_values": ["9.0"],
    "missing": "drop",
}


@pytest.mark.parametrize(
    ("whole", "changes", "kept"),
    [
        (SEX, {"values": ["m", "f", " M"]}, False),
        (SEX, {"values": ["m", "f", "?"]}, False),
        (SEX, {"values": ["m", "f", "-"]}, False),
        (SEX, {"values": ["m", "f", ""]}, False),
        (SEX, {"values": ["m", "f", "  "]}, False),
        (SEX, {"values": ["m", "f", "f "]}, False),
        (SEX, {"values": ["m", "f"], "aliases": {"M": "m", "?": "f"}}, False),
        (SEX, {"values": ["m", "f"], "aliases": {"M": "m", " M ": "f"}}, False),
        (SEX, {"values": ["M", "f"], "aliases": {"m": "M"}}, True),
        (SEX, {"values": ["any"], "aliases": {"M": "any", "m": "any", "f": "any"}}, True),
        (RANK, {"values": [1, 9], "aliases": {"2": 9, "3": 9}}, False),
        (RANK, {"values": [1, 8], "aliases": {"2": 8, "3": 8}}, True),
        (RANK, {"values": [1, 3], "aliases": {"2": 3}}, True),
        ({**RANK, "out_of_domain": "drop"}, {"values": [1, 8], "aliases": {"2": 8, "3": 8}}, False),
        ({**SEX, "values": ["1", "2"], "aliases": {}}, {"values": ["2"], "aliases": {"1": "2"}}, True),
        ({**SEX, "values": ["1", "2"], "aliases": {}}, {"values": ["any"], "aliases": {"1": "any", "2": "any"}}, True),
    ],
)
def test_no_spelling_gets_another_meaning(whole: dict[str, Any], changes: dict[str, Any], kept: bool) -> None:
    """As the encoder reads it: without blanks in a CSV, and declared values before texts that mean missing."""
    one, other = (Schema.model_validate({"attributes": [tree]}) for tree in (whole, {**whole, **changes}))
    assert (departures(other, one) == []) == kept


TEXTS = ["nurse", "cook", "1", "2", "3", "7", "9", "9.0", "02", " 2", "2.0", "?", "", "true", None]
ARRAYS = [pa.array(TEXTS), pa.array(TEXTS).dictionary_encode(), pa.array([True, False, None])]
ARRAYS += [pa.array([1, 2, 3, 7, 9, -5, 99, None]).cast(kind) for kind in (pa.int8(), pa.int64(), pa.float64())]
ARRAYS += [pa.array([1, 2.5, None]), pa.array(["1", "2", "9", None]).cast(pa.decimal128(5, 1))]
WHOLES = [
    RANK,
    {**RANK, "aliases": {"7": 3, "two": 2}},
    {**RANK, "out_of_domain": "drop", "missing_values": ["2", "9"]},
    {**RANK, "out_of_domain": "clip"},
    {**RANK, "out_of_domain": "clip", "aliases": {"7": 1}},
    {**SEX, "kind": "ordinal", "values": ["1", "2", "3"], "out_of_domain": "clip", "aliases": {}},
    {**SEX, "values": ["1", "2"], "aliases": {"true": "1"}, "missing_values": ["9.0", "?"]},
    {**SEX, "values": ["1", "cook"], "aliases": {"nurse": "cook"}, "out_of_domain": "drop"},
    {**SEX, "values": ["nurse", "cook"], "aliases": {"1": "cook", "2": "cook", "true": "nurse"}},
]


def merged(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All ways to merge two values of an attribute, under the name of one of them or another name."""
    names = whole["values"]
    for one, other in permutations(names, 2):
        for name in (other, 4 if isinstance(other, int) else "any", 9 if isinstance(other, int) else "9"):
            gone = {one, other} - {name}
            aliases = {text: name if value in gone else value for text, value in whole.get("aliases", {}).items()}
            aliases |= {str(value): name for value in gone}
            values = [value for value in names if value not in gone]
            yield {**whole, "values": values if name in values else [*values, name], "aliases": aliases}


@pytest.mark.parametrize("strip", [False, True])
def test_a_part_reads_of_every_column_what_the_contract_reads(strip: bool) -> None:
    """Whatever type a column has: what has a meaning, is missing or is refused is so in both."""

    def read(tree: dict[str, Any], array: pa.Array) -> list[Any] | None:
        attribute = Attribute.model_validate(tree)
        try:
            cells = [ColumnEncoder(attribute, strip=strip, empty_is_missing=strip).encode(one) for one in each(array)]
        except errors.ColumnMismatch:
            return None
        names = list(map(str, attribute.values or ()))
        clipped = tree.get("out_of_domain") == "clip"

        def cell(codes: Any, dropped: Any, counts: Any) -> Any:
            found = (bool(counts[MISSING]), counts.sum() > 0, dropped is not None)
            kept = not any(found) or (clipped and counts[BELOW] + counts[ABOVE] > 0)
            return names[codes[0]] if kept else found

        return [cell(*one) for one in cells]

    def each(array: pa.Array) -> list[pa.Array]:
        return [array.slice(i, 1) for i in range(len(array))]

    compared = 0
    for whole in WHOLES:
        found = [read(whole, array) for array in ARRAYS]
        for part in merged(whole):
            one, other = (Schema.model_validate({"attributes": [tree]}) for tree in (whole, part))
            if departures(other, one):
                continue
            names = {name: part["aliases"].get(name, name) for name in map(str, whole["values"])}
            for array, before in zip(ARRAYS, found, strict=True):
                if before is not None:
                    after = read(part, array)
                    expected = [str(names[cell]) if isinstance(cell, str) else cell for cell in before]
                    assert after == expected, (whole, part, array)
                    compared += 1
    assert compared > 100


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"data": {"path": "x", "minimum_records": 51}}, "minimum_records"),
        ({"data": {"path": "x", "minimum_records": 5, "csv": {"comment": "a"}}}, "data.csv"),
        ({"privacy": {"epsilon": 1, "adjacency": "replacement"}}, "adjacency"),
    ],
)
def test_minima_layouts_and_adjacency_are_those_of_the_contract(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    made = spec(tmp_path, schema(job={}), **changes)
    (found,) = contract(tmp_path).departures(made, event=make_plan(made).event)
    assert why in found


def test_a_public_number_admits_replacement_and_no_policy_that_drops(tmp_path: Path) -> None:
    made = spec(tmp_path, schema(job={}), privacy={"epsilon": 1, "adjacency": "replacement"})
    with pytest.raises(ValueError, match="'age'"):
        contract(tmp_path, number_of_records=60)
    public = contract(tmp_path, schema=schema(job={}, rank={}), number_of_records=60)
    assert public.departures(made, event=make_plan(made).event) == []


def test_minima_of_classes(tmp_path: Path) -> None:
    one = contract(tmp_path, minima={"job": {"nurse": 10}})
    tree = {
        "kind": "mixing",
        "schema": schema(job={}, rank={}),
        "histograms": None,
        "privacy": {"epsilon": 8, "delta": 1e-5},
    }
    for least, kept in ((10, True), (11, False)):
        classes = {"nurse": {"minimum": least, "records": 5}}
        settings = {**tree, "mixing": {"class": "job", "classes": classes, "order": 2}}
        del settings["histograms"]
        base = spec(tmp_path, schema(job={})).model_dump(mode="json", by_alias=True)
        shared = {name: base[name] for name in ("name", "dataset", "data", "output", "ledger", "work")}
        assert (one.departures(load({**shared, **settings}), event=None) == []) == kept


def test_a_release_under_a_contract(tmp_path: Path) -> None:
    """Refused until its custodian has checked the input; then as any other; an input that changed is another one."""
    people(tmp_path)
    data = {"path": str(tmp_path / "people.parquet"), "minimum_records": 50}  # nothing of the columns left out
    made = spec(tmp_path, schema(age={"bins": {"edges": [0, 50]}}), data=data)
    ledger = Books.open(made.ledger)
    declared = contract(tmp_path)
    ledger.create_from_contract("people", declared)
    with pytest.raises(errors.ContractBroken, match="dpdist contract check"):
        run_release(made, fixed_key=KEY)
    from dpdist.lifecycle.conformity import check_input

    found = check_input(declared)
    assert found.problems == ()
    assert found.counts["rows_kept"] == 60
    for _ in range(2):
        ledger.admit_input("people", fingerprint=found.fingerprint, contract=declared.digest)
    run_release(made, fixed_key=KEY)
    with pytest.raises(errors.ContractBroken, match=r"job.*out_of_domain"):
        run_release(spec(tmp_path, schema(job={"out_of_domain": "drop"}), name="second"))
    people(tmp_path, 61)
    with pytest.raises(errors.ContractBroken, match="dpdist contract check"):
        run_release(spec(tmp_path, schema(rank={}), name="third", output={"path": str(tmp_path / "3")}))
    assert [attempt.release for attempt in ledger.show("people").attempts] == ["first"]
    ledger.verify("people")


def test_who_charges_without_comparing_is_refused(tmp_path: Path) -> None:
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    declared = contract(tmp_path)
    ledger.create_from_contract("people", declared)
    ledger.admit_input("people", fingerprint="f" * 64, contract=declared.digest)
    charge = {
        "dataset": "people",
        "release": "r",
        "spec_hash": "s",
        "event": make_plan(spec(tmp_path, schema(job={}))).event,
        "guarantee": "dp",
    }
    for digest, found in ((None, "f" * 64), ("0" * 64, "f" * 64), (declared.digest, "0" * 64)):
        with pytest.raises(errors.ContractBroken):
            ledger.reserve(**charge, input_fingerprint=found, contract=digest)
    with ledger.database.engine.begin() as connection:  # an input that no journal entry admits
        connection.execute(sa.text("UPDATE dpdist_input SET fingerprint = :f"), {"f": "0" * 64})
    with pytest.raises(errors.LedgerError, match="damaged"):
        ledger.reserve(**charge, input_fingerprint="0" * 64, contract=declared.digest)


@pytest.mark.parametrize("has_contract", [False, True])
def test_an_input_is_charged_to_the_data_set_that_admitted_it(has_contract: bool, tmp_path: Path) -> None:
    """Naming another data set for the same files goes around neither the contract nor the caps."""
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    declared = contract(tmp_path, guarantees=["dp", "lid"])
    ledger.create_from_contract("people", declared)
    ledger.admit_input("people", fingerprint="f" * 64, contract=declared.digest)
    if has_contract:
        ledger.create_from_contract("other", declared)
    else:
        ledger.create_dataset("other", epsilon=4, delta="1e-6", guarantees=("dp", "lid"))
    charge = {"dataset": "other", "release": "r", "spec_hash": "s", "event": None, "guarantee": "lid"}
    given = declared.digest if has_contract else None
    with pytest.raises(
        errors.ContractBroken, match=r"dataset: the input is that of data set 'people'.*`dataset: people`"
    ):
        ledger.reserve(**charge, input_fingerprint="f" * 64, contract=given)
    if has_contract:  # an act of the custodian
        with pytest.raises(errors.ContractBroken, match="--also-charged-to people"):
            ledger.admit_input("other", fingerprint="f" * 64, contract=declared.digest)
        ledger.admit_input("other", fingerprint="f" * 64, contract=declared.digest, also_charged_to=["people"])
        ledger.verify("other")
        assert "charged to people" in budget_sentence(ledger, "other")
    ledger.reserve(**charge, input_fingerprint=("f" if has_contract else "0") * 64, contract=given)


def test_what_an_input_was_charged_before_its_contract(tmp_path: Path) -> None:
    """The caps of the contract do not cover it, so the custodian has to say that it is known."""
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_dataset("early", epsilon=4, delta="1e-6", guarantees=("lid",))
    charge = {"spec_hash": "s", "input_fingerprint": "f" * 64, "event": None, "guarantee": "lid"}
    given_back = ledger.reserve(**charge, dataset="early", release="r")
    ledger.void(given_back)
    declared = contract(tmp_path)
    admission = {"fingerprint": "f" * 64, "contract": declared.digest}
    ledger.create_from_contract("first", declared)
    ledger.admit_input("first", **admission)  # nothing of it was released
    ledger.create_dataset("late", epsilon=4, delta="1e-6", guarantees=("lid",))
    ledger.reserve(**{**charge, "input_fingerprint": "e" * 64}, dataset="late", release="r")
    admission["fingerprint"] = "e" * 64
    for known in ((), ("early",)):
        with pytest.raises(errors.ContractBroken, match=r"charged to 'late'.*--also-charged-to late"):
            ledger.admit_input("first", **admission, also_charged_to=known)
    assert "charged to" not in budget_sentence(ledger, "first")
    ledger.admit_input("first", **admission, also_charged_to=("early", "late"))
    assert ledger.show("first").also_charged_to == ("late",)
    assert "charged to late" in budget_sentence(ledger, "first")
    ledger.verify("first")


def test_an_attempt_id_of_another_data_set(tmp_path: Path) -> None:
    from uuid import uuid4

    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    event = make_plan(spec(tmp_path, schema(job={}))).event
    charge = {"release": "r", "spec_hash": "s", "input_fingerprint": "f" * 64, "event": event, "guarantee": "dp"}
    for name in ("one", "other"):
        ledger.create_dataset(name, epsilon=4, delta="1e-6")
    identity = str(uuid4())
    ledger.reserve(**charge, dataset="one", attempt=identity)
    with pytest.raises(errors.ReleaseConflict, match="another data set"):
        ledger.reserve(**charge, dataset="other", attempt=identity)
    assert ledger.show("other").attempts == ()


def test_what_was_charged_for_records_is_no_charge_for_units(tmp_path: Path) -> None:
    """The account said that all releases together protect a household, and those before had protected a record."""
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_dataset("people", epsilon=4, delta="1e-6")
    households = contract(tmp_path, unit={"by": "household", "at_most": 5})
    ledger.amend("people", households, reason="nothing is charged yet")
    ledger.amend("people", contract(tmp_path), reason="nothing is charged yet")
    ledger.admit_input("people", fingerprint="f" * 64, contract=contract(tmp_path).digest)
    charge = {"spec_hash": "s", "input_fingerprint": "f" * 64, "event": Gaussian(20.0), "guarantee": "dp"}
    first = ledger.reserve(dataset="people", release="first", contract=contract(tmp_path).digest, **charge)
    with pytest.raises(errors.LedgerError, match=r"a single record.*'household'.*create another data set"):
        ledger.amend("people", households, reason="its unit")
    ledger.void(first)
    ledger.amend("people", households, reason="its unit")


def test_amendments_are_in_the_journal(tmp_path: Path) -> None:
    """A cap is raised with what was taken as it was, and lowered to what is spent; delta stays."""
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_dataset("people", epsilon=4, delta="1e-6")
    event = make_plan(spec(tmp_path, schema(job={}), privacy={"epsilon": 3})).event
    charge = {"dataset": "people", "spec_hash": "s", "input_fingerprint": "f" * 64, "event": event, "guarantee": "dp"}
    ledger.reserve(**charge, release="before")
    with pytest.raises(errors.BudgetExceeded):
        ledger.reserve(**charge, release="after")
    spent = ledger.show("people").budget.epsilon_spent
    declared = contract(tmp_path, epsilon=8)
    with pytest.raises(errors.BudgetExceeded):
        ledger.amend("people", contract(tmp_path, epsilon=2), reason="lower")
    with pytest.raises(errors.LedgerError, match="delta stays"):
        ledger.amend("people", contract(tmp_path, delta="1e-5"), reason="more")
    with pytest.raises(errors.LedgerError, match="reason"):
        ledger.amend("people", declared, reason="")
    for _ in range(2):
        assert ledger.amend("people", declared, reason="a second wave is paid for").contract == declared.text
    assert ledger.show("people").budget.epsilon_cap == 8
    assert ledger.show("people").budget.epsilon_spent == spent
    ledger.admit_input("people", fingerprint="f" * 64, contract=declared.digest)
    ledger.reserve(**charge, release="after", contract=declared.digest)
    ledger.verify("people")
    with ledger.database.engine.begin() as connection:
        (records,) = zip(*connection.execute(sa.text("SELECT record FROM dpdist_journal")), strict=True)
        assert sum("a second wave is paid for" in record for record in records) == 1
        connection.execute(sa.text("UPDATE dpdist_dataset SET contract = NULL"))
    with pytest.raises(errors.LedgerError, match="caps or policy were altered"):
        ledger.verify("people")
    with pytest.raises(errors.LedgerError, match="caps or policy were altered"):
        ledger.reserve(**charge, release="later", contract=declared.digest)


@pytest.mark.parametrize("name", ["acs2024", "acs2024-histograms", "acs2024-whole"])
def test_the_contract_that_comes_with_dpdist(name: str) -> None:
    deploy = Path(__file__).parents[2] / "deploy"
    made = load(deploy / "releases" / f"{name}.yaml")
    declared = Contract.from_yaml(deploy / "contracts" / "acs2024.yaml")
    assert declared.departures(made, event=make_plan(made).event) == []
    assert Contract.from_text(declared.text) == declared


def test_what_a_check_finds(tmp_path: Path) -> None:
    from dpdist.lifecycle.conformity import check_input

    people(tmp_path, 40)
    few = check_input(contract(tmp_path, minima={"job": {"clerk": 11, "cook": 20}}))
    assert [problem.split(":")[0] for problem in few.problems] == [
        "fewer records are kept than minimum_records declares",
        "minima.job",
    ]
    narrow = schema(age={"bounds": [0, 20]}, job={"aliases": {}})
    with pytest.raises(errors.ColumnMismatch, match=r"data\.extra_columns"):
        check_input(contract(tmp_path, schema=narrow, minimum_records=1))
    wide = {"path": str(tmp_path / "people.parquet"), "extra_columns": "ignore"}
    both = check_input(contract(tmp_path, schema=narrow, minimum_records=1, data=wide))
    assert "'age'" in both.problems[0]
    assert "'job'" in both.problems[0]
    with pytest.raises(errors.SpecError, match=r"data\.later"):
        check_input(contract(tmp_path), [str(tmp_path / "people.parquet")])
    later = {"path": "none", "later": [str(tmp_path / "*.parquet")]}
    assert (
        check_input(contract(tmp_path, data=later, minimum_records=1), [str(tmp_path / "people.parquet")]).problems
        == ()
    )


@pytest.mark.parametrize("cap", ["1e-400", "1e-320", "1e-7", "1e7", "1e400"])
def test_caps_out_of_range_are_refused_by_name(dpdist: Command, tmp_path: Path, cap: str) -> None:
    import yaml

    people(tmp_path)
    tree = contract(tmp_path).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    (tmp_path / "people.yaml").write_text(yaml.safe_dump({**tree, "epsilon": cap}))
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema()))
    options = ("--data", "people.parquet", "--minimum", "50", "--epsilon", cap, "--delta", "1e-6")
    for command in (
        ("ledger", "create", "e", "--epsilon", cap, "--delta", "1e-6"),
        ("ledger", "create", "e", "--contract", "people.yaml"),
        ("contract", "check", "people.yaml"),
        ("contract", "draft", "schema.yaml", *options),
    ):
        refused = dpdist(*command)
        assert (refused.code in (2, 5), "epsilon" in refused.err) == (True, True), (command, refused.code, refused.err)


def test_commands(dpdist: Command, tmp_path: Path) -> None:
    """From a schema to a contract, to a data set, to a release."""
    import yaml

    people(tmp_path)
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema()))
    options = ("--data", "people.parquet", "--minimum", "50", "--epsilon", "4", "--delta", "1e-6")
    drafted = dpdist("contract", "draft", "schema.yaml", *options)
    assert drafted.code == 0, drafted.err
    (tmp_path / "people.yaml").write_text(drafted.out)
    assert "the contract is kept" in dpdist("contract", "check", "people.yaml").out
    assert dpdist("ledger", "create", "people", "--contract", "people.yaml", "--epsilon", "4").code == 2
    created = dpdist("ledger", "create", "people", "--contract", "people.yaml")
    assert (created.code, "its releases are signed by sha256:" in created.words) == (0, True)
    assert "PUBLIC KEY" in next(tmp_path.rglob("*.people.pub.pem")).read_text()
    tree = spec(Path(), schema(job={}), ledger="sqlite:///dpdist-ledger.db").model_dump(mode="json", by_alias=True)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(tree))
    assert "Contract    kept" in dpdist("plan", "spec.yaml").out
    assert dpdist("release", "spec.yaml").code == 4
    assert "may be released" in dpdist("contract", "check", "--dataset", "people").out
    released = dpdist("release", "spec.yaml")
    assert released.code == 0, released.err
    (tmp_path / "people.yaml").write_text(drafted.out.replace("epsilon: '4'", "epsilon: 5"))
    assert dpdist("contract", "amend", "people", "people.yaml", "--reason", "a reason").code == 0
    assert dpdist("contract", "show", "people").out.count("attributes") == 1
    people(tmp_path, 20)
    refused = dpdist("contract", "check", "--dataset", "people")
    assert (refused.code, "fewer records" in refused.err) == (errors.OutOfDomain.exit_code, True)
    assert dpdist("ledger", "verify", "people").code == 0
