"""What may be asked under a contract: assumptions, readings, merged integers."""

import random
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from dpdist.data.encode import TableEncoder, check_type
from dpdist.data.report import check
from dpdist.errors import DpdistError, SpecError
from dpdist.spec.contract import Contract
from dpdist.spec.part import departures
from dpdist.spec.reader import load
from dpdist.spec.schema import Schema
from dpdist.spec.strict import Exact, Section
from dpdist.spec.strict_yaml import parse_yaml
from dpdist.spec.validation import parse_overrides

SCHEMA = {
    "attributes": [
        {"name": "ill", "kind": "categorical", "values": ["yes", "no"]},
        {"name": "sex", "kind": "categorical", "values": ["f", "m"]},
    ]
}
TERMS = {
    "schema": SCHEMA,
    "data": {"path": "people.csv"},
    "minimum_records": 1000,
    "number_of_records": 1000,
    "guarantees": ["pml"],
    "epsilon": 1,
    "delta": "1e-6",
    "pml": "0.7",
}


def _departures(alpha: float, columns: list[str], **declared: float) -> list[str]:
    privacy: dict[str, Any] = {"mechanism": "pml", "adjacency": "replacement", "epsilon": 0.7, "alpha": alpha}
    spec = load(
        {
            "kind": "histogram",
            "name": "counts",
            "dataset": "people",
            "schema": SCHEMA,
            "data": {"path": "people.csv", "minimum_records": 1000},
            "output": {"path": "out"},
            "privacy": privacy | {"accept_no_noise": True},
            "histograms": [{"columns": columns}],
        }
    )
    return Contract.model_validate({**TERMS, "alpha": declared}).departures(spec, event=None)


def test_alpha_is_the_contracts() -> None:
    """One ill person in 1000 was published exactly, by a spec that assumes that half of all are ill."""
    assert _departures(0.5, ["ill"])
    assert _departures(0.5, ["ill"], ill=0.0005, sex=0.4)
    assert not _departures(0.4, ["sex"], ill=0.0005, sex=0.4)
    assert _departures(0.2, ["ill", "sex"], ill=0.4, sex=0.4)  # they may depend on each other


@pytest.mark.parametrize("declared", [{"age": 0.5}, {"ill": 0.0}, {"ill": 1.5}])
def test_alpha_of_a_contract_is_a_probability_of_an_attribute(declared: dict[str, float]) -> None:
    with pytest.raises((SpecError, ValueError), match="alpha"):
        Contract.model_validate({**TERMS, "alpha": declared})


class _Budget(Section):
    epsilon: Exact


@pytest.mark.parametrize("digits", ["\u09ea", "\u0665", "\uff11", "1/\u0663"])  # the first, a 4, looks like an 8
def test_digits_of_other_scripts_are_no_number(digits: str) -> None:
    tree = parse_yaml(f"epsilon: {digits}")
    with pytest.raises(ValueError, match="expected a number"):
        _Budget.model_validate(tree)
    assert parse_overrides([f"privacy.epsilon={digits}"]) == {"privacy.epsilon": digits}


@pytest.mark.parametrize("hidden", ["\u3164", "\u2800", "\u034f", "\ufe0f", "\uffa0", "\U000e0100"])
def test_letters_without_a_shape_are_refused(hidden: str) -> None:
    with pytest.raises(SpecError, match=r"line 2, b: the character U\+"):
        parse_yaml(f"a: 1\nb: text{hidden}")


@pytest.mark.parametrize("escape", ["\\ud800", "\\0"])
def test_escapes_that_are_no_text_are_refused_before_anything_is_charged(escape: str) -> None:
    with pytest.raises(SpecError, match=r"line 2: an escape stands for U\+"):
        parse_yaml(f'a: 1\nvalues: ["a", "{escape}"]')
    with pytest.raises(SpecError, match=r"--set data\.path: line 1: an escape"):
        parse_overrides([f'data.path="a{escape}"'])
    assert parse_yaml('"\\U0001F600"') == "\U0001f600"


@pytest.mark.parametrize("number", ["08", "-09", "0o17"])
def test_what_only_yaml_1_2_takes_for_a_number_is_refused(number: str) -> None:
    with pytest.raises(SpecError, match=r"line 1: code: .* quote the text"):
        parse_yaml(f"code: {number}")


class _Numbers(_Budget):
    epsilon: Exact = Fraction(1)
    records: int = 1
    limit: float | None = None


@pytest.mark.parametrize("setting", ["epsilon", "records", "limit"])
def test_a_number_in_quotes_has_no_underscores(setting: str) -> None:
    """``"1_0"`` was ten."""
    with pytest.raises(ValueError, match="expected a number"):
        _Numbers.model_validate(parse_yaml(f'{setting}: "1_0"'))
    assert parse_overrides([f'{setting}="1_0"']) == {setting: "1_0"}


DIGITS = {"name": "c", "kind": "ordinal", "values": ["1", "2", "3"], "out_of_domain": "clip", "missing": "drop"}
MIXED = {"name": "c", "kind": "categorical", "values": ["7", "no", "?"], "missing": "drop", "missing_values": ["9.0"]}
ODD = {
    "name": "c",
    "kind": "categorical",
    "values": ["no", "2", "?"],
    "missing_values": ["1.0"],
    "out_of_domain": "drop",
}
TWICE = {"name": "c", "kind": "ordinal", "values": [2, 1, 0], "missing": "drop", "missing_values": ["1"]}
ALIAS = {"name": "c", "kind": "categorical", "values": ["0", "a", "b"], "aliases": {"0": "a"}, "missing": "drop"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], pa.Array]] = {
    "clipped integer": (DIGITS, {"values": ["a"], "aliases": dict.fromkeys("123", "a")}, pa.array([1, -4])),
    "clipped text": (DIGITS, {"values": ["a"], "aliases": dict.fromkeys("123", "a")}, pa.array(["1", "9"])),
    "missing as an integer": (MIXED, {"values": ["7"], "aliases": {"no": "7", "?": "7"}}, pa.array(["9", "no"])),
    "an odd integer as a text": (ODD, {"values": ["no"], "aliases": {"2": "no", "?": "no"}}, pa.array(["1", "no"])),
    "an odd integer": (ODD, {"values": ["no", "?"], "aliases": {"2": "no"}}, pa.array([1, 2])),
    "a value that means missing": (TWICE, {"values": [2], "aliases": {"0": 2}}, pa.array([1, 2])),
    "an alias that is a value": (ALIAS, {"values": ["0", "b"], "aliases": {"a": "0"}}, pa.array([0.0, None])),
}


def _outcome(attribute: dict[str, Any], column: pa.Array) -> Any:
    """Why a column is refused, or the rows that are kept."""
    schema = Schema.model_validate({"attributes": [attribute]})
    try:
        check_type(schema.attributes[0], column.type)
        rows = TableEncoder(schema).encode(pa.RecordBatch.from_arrays([column], ["c"]))
        check(rows.report, schema)
    except DpdistError as error:
        return type(error)
    return [True] * len(column) if rows.keep is None else rows.keep.tolist()


@pytest.mark.parametrize("name", CASES)
def test_a_part_that_reads_a_column_in_another_way_is_no_part(name: str) -> None:
    whole, changes, column = CASES[name]
    assert _outcome(whole | changes, column) != _outcome(whole, column)
    part, contract = (Schema.model_validate({"attributes": [tree]}) for tree in (whole | changes, whole))
    assert departures(part, contract)


def test_a_null_that_made_floats_refuses_nothing() -> None:
    whole = DIGITS | {"out_of_domain": "refuse"}
    part = whole | {"values": ["a", "3"], "aliases": {"1": "a", "2": "a"}}
    assert not departures(*(Schema.model_validate({"attributes": [tree]}) for tree in (part, whole)))
    assert _outcome(part, pa.array([1.0, None])) == _outcome(whole, pa.array([1.0, None])) == [True, False]


def test_texts_are_merged_as_before() -> None:
    whole = {"name": "c", "kind": "categorical", "values": ["1", "2", "none"]}
    part = whole | {"values": ["some", "none"], "aliases": {"1": "some", "2": "some"}}
    assert not departures(*(Schema.model_validate({"attributes": [tree]}) for tree in (part, whole)))


TEXTS = ["a", "b", "c", " a", "1", "2", "3", "01", "+1", "1.0", "2.", "-1", "-0", "0", "true", "True", "NA", "", "1 "]
NUMBERS = [0, 1, 2, 3, -1, 99, None]


def _attribute(pick: random.Random) -> dict[str, Any]:
    values: list[Any] = pick.sample(pick.choice([["a", "b", "1", "2", "0", "true", "01", "1.0"], [0, 1, 2, 3]]), 3)
    kind, policies = pick.choice([("categorical", 3), ("ordinal", 4)])
    return {
        "name": "c",
        "kind": kind,
        "values": values,
        "aliases": {pick.choice(TEXTS): pick.choice(values) for _ in range(pick.choice([0, 0, 1, 2]))},
        "missing": pick.choice(["refuse", "drop", {"category": "gone"}]),
        "missing_values": pick.sample(TEXTS, pick.choice([0, 0, 1, 2])),
        "out_of_domain": pick.choice(["refuse", "drop", {"category": str(pick.choice(values))}, "clip"][:policies]),
    }


def _merged(pick: random.Random, whole: dict[str, Any]) -> dict[str, Any]:
    group = pick.sample(whole["values"], pick.randint(1, 3))
    text = isinstance(group[0], str)
    name = pick.choice([group[0], group[-1], "new" if text else 9, pick.choice(TEXTS) if text else 1])
    values = [value for value in whole["values"] if value not in group and value != name]
    values.insert(pick.randint(0, len(values)), name)
    aliases = {alias: name if value in group else value for alias, value in whole["aliases"].items()}
    aliases |= {str(value): name for value in group if str(value) != str(name)}
    policy = whole["out_of_domain"]
    if isinstance(policy, dict) and policy["category"] in map(str, group):
        policy = {"category": str(name)}
    if aliases and not pick.randrange(8):
        aliases.pop(pick.choice(list(aliases)))
    return whole | {"values": values, "aliases": aliases, "out_of_domain": policy}


def _columns(pick: random.Random) -> list[pa.Array]:
    numbers = [pick.choice(NUMBERS) for _ in range(3)]
    texts = pa.array([pick.choice([*TEXTS, None]) for _ in range(3)], pa.string())
    wide = pa.array(numbers, pa.int64())
    truths = pa.array([pick.choice([True, False, None])])
    return [texts, texts.dictionary_encode(), wide, wide.cast(pa.int8()), wide.cast(pa.float64()), truths, pa.nulls(2)]


def test_what_the_whole_admits_a_part_admits() -> None:
    """Of random attributes and what merges their values, a part refuses and drops no more than the whole."""
    pick, admitted = random.Random(15), 0
    while admitted < 400:
        whole = _attribute(pick)
        part = _merged(pick, whole)
        try:
            schemas = [Schema.model_validate({"attributes": [tree]}) for tree in (part, whole)]
        except ValidationError:
            continue
        if departures(*schemas):
            continue
        admitted += 1
        for column in _columns(pick):
            expected = _outcome(whole, column)
            assert isinstance(expected, type) or _outcome(part, column) == expected, (whole, part, column)
