"""Wrong uses from Python: each one clear error of the tree, nothing charged, nothing lost."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import releases
from distributed import Client, LocalCluster
from releases import in_memory as spec

import dpdist
from dpdist import errors
from dpdist.spec.schema import Schema

TABLE = releases.table(3_000)


@dataclass
class Place:
    """A folder with a ledger, a release that is published and a contract; clients that cannot compute."""

    ledger: dpdist.Ledger
    closed: Client
    idle: Client

    def release(self, data: Any = TABLE, **options: Any) -> Any:
        given = {"ledger": self.ledger} | options
        return dpdist.release(given.pop("spec", None) or spec(), data=data, **given)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("wrong")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ledger = dpdist.Ledger("sqlite:///ledger.db")
        ledger.create("people", epsilon=8, delta="1e-4")
        dpdist.release(spec("published"), data=TABLE, ledger=ledger)
        Path("schema.yaml").write_text(Schema.model_validate(releases.SCHEMA).model_dump_json())
        Path("contract.yaml").write_text(
            '{"schema": "schema.yaml", "data": {"path": "none"}, "minimum_records": 9, "epsilon": 8, "delta": 0.0001}'
        )
        ledger.create("bound", contract="contract.yaml")
        with (
            LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
            Client(cluster) as idle,
        ):
            closed = Client(cluster, set_as_default=False)
            closed.close()
            yield Place(ledger, closed, idle)


def changed(column: str, values: Any) -> pa.Table:
    return TABLE.set_column(TABLE.schema.get_field_index(column), column, pa.array(values))


def frame() -> Any:
    pytest.importorskip("pandas")
    return TABLE.to_pandas()


def mixed() -> Any:
    made = frame().astype({"region": object})
    made.loc[0, "region"] = 3.5
    return made


def twice() -> Any:
    made = frame()
    made.columns = [*made.columns[:-1], "region"]
    return made


def parts() -> Any:
    return pytest.importorskip("dask.dataframe").from_pandas(frame(), npartitions=2)


def synthesizer(place: Place) -> dpdist.Synthesizer:
    return dpdist.Synthesizer(releases.SCHEMA, epsilon=1, delta=1e-9, ledger=place.ledger, dataset="people")


WRONG: dict[str, tuple[type[Exception], str, Callable[[Place], Any]]] = {
    "a list of numbers": (errors.SpecError, "expected a path, a pandas", lambda p: p.release([1, 2])),
    "a dictionary": (errors.SpecError, "the builtins dict is not one", lambda p: p.release({"region": ["north"]})),
    "one column": (errors.SpecError, "is not one of these", lambda p: p.release(frame()["region"])),
    "a column is missing": (
        errors.ColumnMismatch,
        "'age' is missing",
        lambda p: p.release(TABLE.drop_columns(["age"])),
    ),
    "a column too many": (
        errors.ColumnMismatch,
        "does not name the column 'more'",
        lambda p: p.release(TABLE.append_column("more", TABLE["age"])),
    ),
    "a column of lists": (errors.ColumnMismatch, "'age'", lambda p: p.release(changed("age", [[1]] * 3_000))),
    "a column of dates": (
        errors.ColumnMismatch,
        "'age'",
        lambda p: p.release(changed("age", pa.array([1] * 3_000, pa.int32()).cast(pa.date32()))),
    ),
    "a column of several types": (
        errors.ColumnMismatch,
        "'region' holds values of several",
        lambda p: p.release(mixed()),
    ),
    "two columns of one name": (errors.ColumnMismatch, "the same name", lambda p: p.release(twice())),
    "partitions of partitions": (
        errors.SpecError,
        "has its own partitions",
        lambda p: p.release(parts(), settings={"cluster.partitions": 4}),
    ),
    "a missing column in partitions": (
        errors.ColumnMismatch,
        "'age' is missing",
        lambda p: p.release(parts().drop(columns=["age"])),
    ),
    "no file": (errors.DataNotFound, "there is no file", lambda p: p.release("nowhere.parquet")),
    "no data": (errors.SpecError, "data.path", lambda p: p.release(None)),
    "no spec file": (errors.SpecError, "nowhere.yaml", lambda p: p.release(spec=Path("nowhere.yaml"))),
    "a spec that is not one": (errors.SpecError, "got int", lambda p: p.release(spec=7)),
    "a setting that is not one": (errors.SpecError, "epsilonn", lambda p: p.release(settings={"privacy.epsilonn": 1})),
    "a setting of another section": (
        errors.SpecError,
        "title: there is no such setting here; there is schema.about.title",
        lambda p: p.release(settings={"title": "People"}),
    ),
    "a setting cut short": (
        errors.SpecError,
        "did you mean 'epsilon'",
        lambda p: p.release(settings={"privacy.eps": 1}),
    ),
    "a closed client": (errors.ClusterUnreachable, "it is closed", lambda p: p.release(client=p.closed)),
    "a client without workers": (errors.ClusterUnreachable, "has no workers", lambda p: p.release(client=p.idle)),
    "an address for a client": (errors.SpecError, "distributed.Client", lambda p: p.release(client="tcp://x:8786")),
    "no scheduler file": (
        errors.ClusterUnreachable,
        "there is no file",
        lambda p: p.release(settings={"cluster.mode": "address", "cluster.scheduler_file": "nowhere.json"}),
    ),
    "too small a budget": (errors.BudgetExceeded, "people", lambda p: p.release(settings={"privacy.epsilon": 15})),
    "a limit that is exceeded": (errors.GuaranteeRefused, "limit", lambda p: p.release(settings={"privacy.limit": 1})),
    "no ledger": (errors.LedgerError, "no ledger at", lambda p: p.release(ledger="sqlite:///nowhere.db")),
    "a number for a ledger": (errors.SpecError, "expected a URL", lambda p: p.release(ledger=3)),
    "an unknown data set": (errors.DatasetUnknown, "others", lambda p: p.release(settings={"dataset": "others"})),
    "a data set twice": (errors.DatasetExists, "people", lambda p: p.ledger.create("people", epsilon=1, delta=1e-9)),
    "a data set without caps": (errors.SpecError, "epsilon and delta", lambda p: p.ledger.create("more")),
    "an unchecked table": (errors.ContractBroken, "bound", lambda p: p.release(settings={"dataset": "bound"})),
    "a value outside the domain": (
        errors.OutOfDomain,
        "'region'",
        lambda p: p.ledger.check("bound", changed("region", ["planted-value"] * 3_000)),
    ),
    "nothing to resume": (errors.LedgerError, "first", lambda p: p.release(attempt="resume")),
    "an output that is taken": (
        errors.OutputExists,
        "already holds",
        lambda p: p.release(settings={"output.path": "out/published"}),
    ),
    "a name that is taken": (
        errors.ReleaseConflict,
        "published",
        lambda p: p.release(settings={"name": "published", "privacy.epsilon": 1}),
    ),
    "a release that is not one": (errors.DataNotFound, "no finished release", lambda p: dpdist.open_release("work")),
    "evaluating against nothing": (
        errors.SpecError,
        "give against=PATH, or spec=SPEC",
        lambda p: dpdist.evaluate("out/published"),
    ),
    "an unknown option": (
        errors.SpecError,
        "there is no such setting here; did you mean 'target'",
        lambda p: dpdist.evaluate("out/published", TABLE, targets="age"),
    ),
    "sampling before fitting": (
        errors.SpecError,
        "not fitted",
        lambda p: dpdist.Synthesizer(
            releases.SCHEMA, epsilon=1, delta=1e-9, ledger=p.ledger, dataset="people"
        ).sample(),
    ),
    "fitting without a minimum": (errors.SpecError, "minimum_records", lambda p: synthesizer(p).fit(TABLE)),
    "an unknown parameter": (
        errors.SpecError,
        "no parameter 'eps'; did you mean 'epsilon'?",
        lambda p: synthesizer(p).set_params(eps=1),
    ),
}


@pytest.mark.parametrize("use", WRONG)
def test_a_wrong_use_is_refused_and_costs_nothing(use: str, place: Place) -> None:
    kind, words, act = WRONG[use]
    before = [place.ledger.show(name).attempts for name in ("people", "bound")]
    with pytest.raises(kind) as caught:
        act(place)
    assert words in str(caught.value)
    assert "planted-value" not in str(caught.value)
    assert [place.ledger.show(name).attempts for name in ("people", "bound")] == before
    assert dpdist.open_release("out/published").epsilon == 2


def test_a_script_without_a_guard_is_refused_before_processes_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(TABLE, "table.parquet")
    dpdist.Ledger("sqlite:///ledger.db").create("people", epsilon=8, delta="1e-4")
    tree = spec(ledger="sqlite:///ledger.db", cluster={"mode": "embedded", "workers": 1})
    Path("spec.json").write_text(json.dumps(tree | {"data": {"path": "table.parquet", "minimum_records": 2_500}}))
    Path("script.py").write_text("import dpdist\ndpdist.release('spec.json')\n")
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=120)
    assert "SpecError: worker processes begin by running this script again" in done.stderr
    assert not dpdist.Ledger("sqlite:///ledger.db").show("people").attempts


def test_a_script_with_a_guard_may_start_processes(tmp_path: Path) -> None:
    lines = "from dpdist.cluster.opening import require_guard\nif __name__ == '__main__':\n    require_guard()\n"
    (tmp_path / "script.py").write_text(lines)
    subprocess.run([sys.executable, str(tmp_path / "script.py")], check=True)
