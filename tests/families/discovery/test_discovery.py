"""Discovery: the thresholded counts are as private as stated, named values are right, and nothing is told for free."""

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from cases import DISCOVERY
from commands import Command
from outcomes import states
from releases import KEY, fund, placed

from dpdist.api.schemas import draft_of
from dpdist.data.records import MOST_TEXT_BYTES
from dpdist.data.texts import VALUES, count_values, texts_of
from dpdist.errors import ColumnMismatch, ContractBroken, DpdistError, SpecError
from dpdist.families.base.calibration import tail
from dpdist.families.base.registry import make_plan
from dpdist.families.base.values import named
from dpdist.families.discovery import stages
from dpdist.families.discovery.plan import DiscoveryPlan
from dpdist.families.discovery.stages import claims
from dpdist.ledger import Books
from dpdist.lifecycle.run import run_release
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import audit
from dpdist.publish.verify import read_release, verify
from dpdist.spec.reader import load
from dpdist.spec.schema import Schema

Find = Callable[[str], Path]


def plan_of(columns: Mapping[str, Any], *, epsilon: float, delta: float) -> DiscoveryPlan:
    tree: dict[str, Any] = {"kind": "discovery", "name": "found", "dataset": "people", "columns": dict(columns)}
    tree |= {"data": {"path": "t.parquet", "minimum_records": 1}, "output": {"path": "out"}}
    plan = make_plan(load(tree | {"privacy": {"epsilon": epsilon, "delta": delta}}))
    assert isinstance(plan, DiscoveryPlan)
    return plan


def noise_of(plan: DiscoveryPlan) -> dict[int, float]:
    """The probabilities of the noise of a count, from its formula."""
    far = range(-math.ceil(40 * plan.scale) - 2, math.ceil(40 * plan.scale) + 3)
    if plan.mechanism == "laplace":
        q = math.exp(-1 / plan.scale)
        return {z: (1 - q) / (1 + q) * q ** abs(z) for z in far}
    root = plan.scale * math.sqrt(2)
    return {z: (math.erf((z + 0.5) / root) - math.erf((z - 0.5) / root)) / 2 for z in far}


def outcomes(plan: DiscoveryPlan, count: int, *, declared: bool = False) -> dict[int | None, float]:
    """What is published about one cell: a noisy count, or that it is not named."""
    if not count and not declared:
        return {None: 1.0}
    found: dict[int | None, float] = {}
    for z, p in noise_of(plan).items():
        seen = count + z if declared or count + z >= plan.named_from else None
        found[seen] = found.get(seen, 0.0) + p
    return found


def distance(one: dict[Any, float], other: dict[Any, float], epsilon: float) -> float:
    """The least delta at which `one` is within exp(epsilon) of `other`."""
    return math.fsum(max(p - math.exp(epsilon) * other.get(o, 0.0), 0.0) for o, p in one.items())


def losses(plan: DiscoveryPlan, cells: list[tuple[int, bool]]) -> float:
    """The worse delta, at the stated epsilon, of a record that is added to one cell of each column."""
    sides = []
    for record in (0, 1):
        parts = [outcomes(plan, count + record, declared=declared) for count, declared in cells]
        joint: dict[Any, float] = {}
        for combination in product(*(part.items() for part in parts)):
            joint[tuple(o for o, _ in combination)] = math.prod(p for _, p in combination)
        sides.append(joint)
    return max(distance(*sides, plan.epsilon), distance(*sides[::-1], plan.epsilon))


@pytest.mark.parametrize(("epsilon", "delta", "mechanism"), [(4, 0.02, "laplace"), (2, 0.08, "gaussian")])
def test_no_record_is_told_by_more_than_epsilon_and_delta(epsilon: float, delta: float, mechanism: str) -> None:
    """All ways in which a record can be in two columns of texts: new values, rare, frequent, and missing ones."""
    plan = plan_of({"a": "text", "b": "text"}, epsilon=epsilon, delta=delta)
    assert plan.mechanism == mechanism
    cells = [(count, False) for count in (0, 1, plan.named_from - 1, plan.named_from + 3)] + [(0, True)]
    found = {pair: losses(plan, list(pair)) for pair in product(cells, repeat=2)}
    assert max(found.values()) <= delta
    new = losses(plan, [(0, False), (0, False)])
    assert new == pytest.approx(1 - (1 - tail(plan.mechanism, plan.scale, plan.named_from - 1)) ** 2, rel=1e-6)
    assert max(found.values()) > delta / 8  # the bound is about something


def test_the_threshold_is_the_least_for_its_half_of_delta() -> None:
    for columns, epsilon, delta in ((1, 1.0, 1e-9), (3, 0.2, 1e-6), (40, 1.0, 1e-9)):
        plan = plan_of({f"c{i}": "text" for i in range(columns)}, epsilon=epsilon, delta=delta)
        at, below = (columns * tail(plan.mechanism, plan.scale, plan.named_from - 1 - less) for less in (0, 1))
        assert at <= delta / 2 < below
        assert plan.epsilon <= epsilon


@cache
def drawn(count: int, values: int) -> list[int]:
    """The noisy counts of values that stand in this many records each, of those that are named."""
    plan = plan_of({"a": "text"}, epsilon=1, delta=0.05)
    table = pa.table([[f"v{i}" for i in range(values)], [count] * values], schema=VALUES)
    found = named(table, 0, (plan.mechanism, plan.scale, plan.named_from), Noise(bytes(32)))
    return [noisy for _, _, noisy in found]


def test_noise_and_threshold_are_those_of_the_plan() -> None:
    """Of values in one record each the share that is named, and the deviation of large counts; 30 % off is noticed."""
    plan, values = plan_of({"a": "text"}, epsilon=1, delta=0.05), 40_000
    chance, share = tail(plan.mechanism, plan.scale, plan.named_from - 1), len(drawn(1, values)) / values
    spread = math.sqrt(chance / values)
    assert abs(share - chance) < 6 * spread < 0.3 * chance
    large = np.array(drawn(10_000, values)) - 10_000
    assert len(large) == values
    assert abs(large.var() / plan.deviation**2 - 1) < 0.1


def test_an_audit_finds_nothing_against_the_claim() -> None:
    for columns in ({"a": "text", "b": "text", "n": "integer"}, {"n": [0, 9]}):
        (claim,) = claims(plan_of(columns, epsilon=1, delta=1e-6))
        found = audit(claim, runs=300, key=bytes(32))
        assert found.lower_bound <= claim.epsilon


def test_a_row_is_in_one_cell_of_a_column_at_most() -> None:
    """Blanks of every kind, long texts, nulls: a row is missing, or passed over, or one value."""
    texts = [
        "a",
        " a",
        "",
        " ",
        "\x1c",
        "\x1d a",
        "\u2003",
        None,
        "x" * MOST_TEXT_BYTES,
        "x" * (MOST_TEXT_BYTES + 1),
        "é" * 150,
    ]
    for strip in (False, True):
        for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
            for text in texts:
                batch = pa.record_batch([pa.array([text], pa.string()).cast(kind)], names=["c"])
                (counts,), missing = count_values([texts_of(batch, ["c"], strip=strip)], 1)
                assert sum(counts["count"].to_pylist()) + missing[0] == (0 if len((text or "").encode()) > 200 else 1)


def release(folder: Path, table: pa.Table, columns: Mapping[str, Any], **changes: Any) -> pa.Table:
    """A discovery in a table at a fixed key."""
    folder.mkdir(exist_ok=True)
    pq.write_table(table, folder / "table.parquet")
    tree = placed(folder, records=100) | {"kind": "discovery", "name": "found", "columns": dict(columns)}
    tree["data"]["extra_columns"] = "ignore"
    spec = load(tree | {"privacy": {"epsilon": 1, "delta": 1e-9}} | changes)
    fund(spec.ledger, epsilon="4", delta="1e-8")
    run_release(spec, fixed_key=KEY)
    assert verify(spec.output.path).kind == "discovery"
    return read_release(spec.output.path)


def of(found: pa.Table, column: str, statistic: str) -> dict[str, float]:
    rows = found.to_pylist()
    return {row["cell"]: row["noisy"] for row in rows if (row["of"], row["statistic"]) == (column, statistic)}


def test_frequent_values_are_named_and_rare_ones_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes, flags, nearly distinct ids, long texts, nulls, and numbers among which some are none."""
    n = 3_000
    table = pa.table(
        {
            "code": pa.array(np.arange(n) % 3),
            "flag": pa.array(np.arange(n) % 2 == 0),
            "id": pa.array([f"person {i}" for i in range(n)]),
            "note": pa.array(["y" * 300 if i % 2 else None if i % 4 else "yes" for i in range(n)]),
            "number": pa.array([str(i % 100) if i % 5 else "none" for i in range(n)]),
            "other": pa.array(["secret"] * n),
        }
    )
    columns = {"code": "text", "flag": "text", "id": "text", "note": "text", "number": "integer"}
    found = release(tmp_path / "a", table, columns)
    assert set(of(found, "code", "value")) == {"0", "1", "2"}
    assert set(of(found, "flag", "value")) == {"true", "false"}
    assert of(found, "id", "value") == {}
    assert set(of(found, "note", "value")) == {"yes"}
    assert of(found, "note", "missing")[""] == pytest.approx(750, abs=100)
    assert of(found, "number", "missing")[""] == pytest.approx(0, abs=100)
    assert next(iter(of(found, "number", "bin").values())) == pytest.approx(600, abs=100)  # "none"
    assert of(found, "number", "bin")["64"] == pytest.approx(864, abs=100)
    assert "secret" not in str(found.to_pylist())
    drafted = draft_of(tmp_path / "a" / "release", public=False, columns=(), without=("id",))
    assert "are no such numbers: discover it as text" in drafted
    read = yaml_schema(tmp_path, drafted)
    number = read.attributes[-1]
    assert (number.bounds, number.out_of_domain) == ((0, 127), "clip")
    # a few missing values would not have been seen, so none is refused
    policies = {a.name: getattr(a.missing, "category", a.missing) for a in read.attributes}
    rare = "values that are not named"
    assert policies == {"code": rare, "flag": rare, "note": "missing", "number": "drop"}
    assert getattr(read.attributes[1].out_of_domain, "category", "") == rare
    monkeypatch.setattr(stages, "MOST_VALUES", 2)
    few = release(tmp_path / "b", table, {"code": "text"})
    assert len(of(few, "code", "value")) == 2


def yaml_schema(folder: Path, text: str) -> Schema:
    (folder / "schema.yaml").write_text(text)
    return Schema.from_yaml(folder / "schema.yaml")


def test_a_csv_file_gives_the_values_of_a_parquet_file(tmp_path: Path) -> None:
    table = pa.table({"region": [" north", "south "] * 500, "n": ["1.5", ""] * 500})
    pyarrow.csv.write_csv(table, tmp_path / "t.csv")
    columns = {"region": "text", "n": "number"}
    found = release(tmp_path / "a", table, columns, data={"path": str(tmp_path / "t.csv"), "minimum_records": 100})
    assert set(of(found, "region", "value")) == {"north", "south"}
    assert of(found, "n", "missing")[""] == pytest.approx(500, abs=100)
    assert of(found, "n", "bin")["1.0"] == pytest.approx(500, abs=100)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"columns": {}}, "columns"),
        ({"columns": {"region": "txt"}}, "columns"),
        ({"columns": {"age": [9, 0]}}, "bound"),
        ({"schema": {"attributes": [{"name": "age", "kind": "integer", "bounds": [0, 9]}]}}, "leave it out"),
        ({"unit": {"by": "id", "at_most": 3}}, "single records only"),
        ({"privacy": {"epsilon": 1, "delta": 0}}, "delta"),
    ],
)
def test_wrong_specs_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    tree = {**DISCOVERY.spec(tmp_path).model_dump(mode="json", by_alias=True, exclude={"table"}), **changes}
    with pytest.raises(SpecError, match=words):
        load(tree)


def test_a_contract_admits_no_discovery(tmp_path: Path) -> None:
    spec = DISCOVERY.project(tmp_path)
    DISCOVERY.admit(tmp_path)
    with pytest.raises(ContractBroken, match="dpdist contract show"):
        run_release(spec)
    assert not states(spec)


def test_columns_that_are_not_there_cost_nothing(tmp_path: Path) -> None:
    spec = DISCOVERY.project(tmp_path, columns={"regoin": "text"})
    with pytest.raises(ColumnMismatch, match="regoin"):
        run_release(spec)
    assert not states(spec)


ACS = {"STATE": "text", "SEX": "text", "OCCP": "text", "household": "text", "AGEP": "integer", "WKHP": "0..99"}


def test_a_schema_of_census_persons_is_drafted_and_charged_once(
    shared_data: Find, dpdist: Command, tmp_path: Path
) -> None:
    ledger, out = f"sqlite:///{tmp_path}/ledger.db", str(tmp_path / "found")
    fund(ledger, "acs", epsilon="1", delta="1e-8")
    columns = [f"--column={name}" if kind == "text" else f"--column={name}={kind}" for name, kind in ACS.items()]
    asked = ["schema", "discover", str(shared_data("acs2024_persons.parquet")), out, *columns, "--ledger", ledger]
    asked += ["--dataset=acs", "--epsilon=0.75", "--delta=1e-9"]
    answer = dpdist(*asked)
    assert answer.code == 0, answer.err
    assert "(0.75, 1e-9)-differential privacy for the whole release (add/remove)" in answer.words.replace("# ", "")
    again = dpdist(*asked)
    assert (again.code, again.out) == (0, answer.out)
    assert dpdist("schema", "draft", out).out == answer.out
    with closing(Books.open(ledger)) as opened:
        assert [attempt.state for attempt in opened.show("acs").attempts] == ["committed"]
    read = yaml_schema(tmp_path, dpdist("schema", "draft", out, "--leave-out=household").out)
    attributes = {attribute.name: attribute for attribute in read.attributes}
    assert {9, 13, 53} < set(attributes["STATE"].values or ())
    assert attributes["SEX"].values == (1, 2)
    assert 200 < len(attributes["OCCP"].values or ()) < 530  # rare occupations are not named
    assert (attributes["AGEP"].bounds, attributes["WKHP"].bounds) == ((0, 127), (0, 99))
    other = dpdist(*[part.replace(out, f"{out}2") for part in asked])
    assert other.code != 0
    assert "acs" in other.err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--column=a", "--column=a=integer"], "named twice"),
        (["--column=a=integr"], "did you mean 'integer'"),
        (["--column=a", "--epsilon=0"], "privacy.epsilon"),
    ],
)
def test_wrong_commands_say_what_to_do(dpdist: Command, tmp_path: Path, given: list[str], words: str) -> None:
    asked = ["--dataset=d", "--epsilon=1", "--delta=1e-9", *given]
    answer = dpdist("schema", "discover", str(tmp_path / "t.parquet"), str(tmp_path / "out"), *asked)
    assert answer.code != 0
    assert words in answer.err


def test_a_release_that_is_no_discovery_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(DpdistError):
        draft_of(tmp_path, public=False, columns=(), without=())
