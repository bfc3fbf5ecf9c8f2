"""`dpdist evaluate` of a release of two linked tables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import RELATIONAL, persons
from releases import KEY
from typer.testing import CliRunner

from dpdist.cli import app
from dpdist.cluster.executor import InProcess
from dpdist.data.inputs import Files
from dpdist.data.released import ReleasedTable
from dpdist.data.source import TableSource
from dpdist.errors import SpecError
from dpdist.evaluation.inputs import EvaluatedTables
from dpdist.evaluation.linked import parents as module
from dpdist.evaluation.linked.sections import LinkedInputs, open_linked
from dpdist.evaluation.request import Request
from dpdist.evaluation.run import linked_rows, run_evaluation
from dpdist.lifecycle.run import run_release
from dpdist.publish.verify import open_release, read_release
from dpdist.spec.data import ParentTable
from dpdist.spec.release import ReleaseSpec

HELD_OUT = 10**7
"""What is added to the ids of held-out households."""


@dataclass(frozen=True)
class Made:
    folder: Path
    spec: ReleaseSpec

    @property
    def release(self) -> str:
        return self.spec.output.path

    def path(self, name: str) -> str:
        return str(self.folder / f"{name}.parquet")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A release, its table and a hold-out: each joined, and as persons and households."""
    folder = tmp_path_factory.mktemp("linked")
    spec = RELATIONAL.project(folder)
    run_release(spec, fixed_key=KEY)
    for name, table in (("table", RELATIONAL.table(RELATIONAL.rows)), ("holdout", persons(4_000, seed=4))):
        members = table.to_pandas().dropna(subset=["household"])
        members["household"] = members["household"].astype("int64") + HELD_OUT * (name == "holdout")
        owners = members.groupby("household")[["region"]].first().reset_index()
        for end, frame in (("", members), ("-persons", members.drop(columns="region")), ("-households", owners)):
            pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), folder / f"{name}{end}.parquet")
    return Made(folder, spec)


def evaluated(made: Made, output: Path, **changes: Any) -> dict[str, Any]:
    asked = {"against": (made.path("table"),), "holdout": (made.path("holdout"),), "cluster": "threads"} | changes
    done = run_evaluation(Request(release=made.release, output=output, **asked))
    figures: dict[str, Any] = json.loads(Path(done.figures).read_text())
    assert figures["confidential"].startswith("CONFIDENTIAL")
    assert "CONFIDENTIAL" in Path(done.page).read_text()
    return figures


def opened(made: Made, *, parents: bool = False, spec: ReleaseSpec | None = None) -> LinkedInputs:
    store, manifest = open_release(made.release)
    linked = linked_rows(manifest, spec)
    source = TableSource((made.path("table"),), extra_columns="ignore")
    if parents:
        above = made.path("table-households")
        of = ParentTable(path=(above,), attributes=("region",))
        source = TableSource((made.path("table-persons"), above), extra_columns="ignore", parent=of)
    released = ReleasedTable(store, manifest)
    return open_linked(
        released, linked, EvaluatedTables(Files(source)), executor=InProcess(), seed=0, progress=lambda *_: None
    )


def test_the_page_has_both_tables_and_attacks_on_households(made: Made, tmp_path: Path) -> None:
    """The command, with households in a table of their own and without; both say the same."""
    whole = evaluated(made, tmp_path / "whole")
    assert {
        "marginals",
        "parents-marginals",
        "within-parents",
        "correlations",
        "rules",
        "models",
        "parents-membership",
    } == set(whole["sections"])
    assert whole["sections"]["models"]["figures"]["applies"] is False
    attacks = whole["sections"]["parents-membership"]
    assert attacks["state"] == "good"
    assert attacks["figures"]["all"]["copy"]["auc"]["low"] > 0.6
    assert whole["sections"]["within-parents"]["figures"]["number"] > 50
    answer = CliRunner().invoke(
        app,
        ["evaluate", made.release, "--against", made.path("table-persons"), "--parents",
         made.path("table-households"), "--holdout", made.path("holdout-persons"), "--holdout-parents",
         made.path("holdout-households"), "--output", str(tmp_path / "two"), "--cluster", "threads"],
        catch_exceptions=False,
    )  # fmt: skip
    assert answer.exit_code == 0, answer.output
    two = json.loads((tmp_path / "two" / "evaluation.json").read_text())
    for name in ("marginals", "parents-marginals"):
        assert (
            two["sections"][name]["figures"]["records"]["real"] == whole["sections"][name]["figures"]["records"]["real"]
        )
        found, expected = (of["sections"][name]["figures"]["mean_distance"]["2"] for of in (two, whole))
        assert found == pytest.approx(expected)


def counted(ages: Any) -> list[int]:
    return np.bincount(ages, minlength=20).tolist()


@pytest.mark.parametrize("parents", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_real_households_are_read_whole_and_in_order(made: Made, parents: bool, known: bool) -> None:
    found = opened(made, parents=parents, spec=made.spec if known else None).real
    table = pd.read_parquet(made.path("table"))
    table = table[~((table.age < 15) & (table.employed == "yes"))]
    table["place"] = table.sort_values("order").groupby("household").cumcount()
    used = table[table.place < 4]
    counts = used.groupby("household").size().value_counts()
    assert np.bincount(found.sizes)[1:].tolist() == [counts[n] for n in range(1, 5)]

    ages = found.codes[found.linked.schema.names.index("age")]
    for place in range(1 if known else 4):  # by the spec, orders from 7 on are one
        assert counted(ages[found.places == place]) == counted(used[used.place == place].age // 5)


def test_released_households_are_those_of_the_files(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    table = read_release(made.release).to_pandas()
    found = opened(made)
    assert found.released.sizes.tolist() == table.groupby("household").size().tolist()
    assert found.broken.tolist() == [0]
    assert found.rows == len(table)
    monkeypatch.setattr(module, "MOST_ROWS", len(table) // 3)  # a part of both
    some = opened(made)
    assert 0.2 < len(some.released) / len(found.released) < 0.4
    assert 0.05 < len(some.real) / len(found.real) < 0.3
    assert abs(some.real.sizes.mean() - found.real.sizes.mean()) < 0.3


def test_what_cannot_be_done_is_refused(made: Made, tmp_path: Path) -> None:
    spec = RELATIONAL.spec(made.folder, members={"order": "order"})
    for changes, told in (
        ({"publish": 0.1}, "--publish"),
        ({"holdout": (made.path("table"),)}, "--holdout"),
        ({"spec": spec}, "--spec"),
    ):
        with pytest.raises(SpecError, match=told):
            evaluated(made, tmp_path / "none", **changes)
    copy = made.folder / "copy.parquet"
    copy.write_bytes(Path(made.path("table")).read_bytes())
    found = evaluated(made, tmp_path / "copied", holdout=(str(copy),))
    assert found["sections"]["holdout"]["state"] == "bad"
    assert found["sections"]["parents-membership"]["figures"]["applies"] is False


def test_a_hold_out_may_have_its_households_in_the_same_table(made: Made, tmp_path: Path) -> None:
    both = pa.concat_tables([pq.read_table(made.path(f"{name}-households")) for name in ("table", "holdout")])
    pq.write_table(both, tmp_path / "households.parquet")
    found = evaluated(
        made,
        tmp_path / "page",
        against=(made.path("table-persons"),),
        holdout=(made.path("holdout-persons"),),
        parents=(str(tmp_path / "households.parquet"),),
    )
    expected = evaluated(made, tmp_path / "whole")
    assert found["facts"]["real records"].split()[0] == expected["facts"]["real records"].split()[0]
    assert found["facts"]["held-out records"].split()[0] == expected["facts"]["held-out records"].split()[0]
