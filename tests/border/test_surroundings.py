"""What changes or ends around a release: frames, files that are pipes, signals, clients, orders."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from cases import HISTOGRAM, MIXING, RELATIONAL
from federations import federation
from releases import SCHEMA, fund, placed, table

import dpdist
from dpdist.data.encode import ColumnEncoder
from dpdist.errors import OutOfDomain, ReleaseConflict, SpecError
from dpdist.ledger import Books
from dpdist.lifecycle.history import list_runs
from dpdist.lifecycle.run import Run, run_release
from dpdist.spec.attribute import Attribute
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load
from dpdist.storage.local import PROBE
from dpdist.storage.store import Store


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dpdist.Ledger:
    monkeypatch.chdir(tmp_path)
    made = dpdist.Ledger("sqlite:///ledger.db")
    made.create("people", epsilon=1, delta=1e-8)
    return made


def people() -> pd.DataFrame:
    return pd.DataFrame({"age": [18 + i % 60 for i in range(6_000)]})


def spec(name: str) -> dict[str, Any]:
    return {
        "kind": "histogram",
        "name": name,
        "dataset": "people",
        "schema": {"attributes": [{"name": "age", "kind": "integer", "bounds": [18, 90]}]},
        "data": {"minimum_records": 5_000},
        "output": {"path": f"out/{name}"},
        "work": "work",
        "privacy": {"epsilon": 0.01},
        "histograms": [{"columns": ["age"]}],
    }


@pytest.mark.parametrize("changes", [True, False])
def test_a_lazy_frame_is_the_same_whenever_it_is_computed(ledger: dpdist.Ledger, changes: bool) -> None:
    frames = pytest.importorskip("dask.dataframe")
    readings = []

    def part(_: int) -> pd.DataFrame:
        readings.append(1)
        found = people()
        return found.iloc[1:] if changes and len(readings) > 1 else found

    frame = frames.from_map(part, range(1), meta=people().iloc[:0], enforce_metadata=False)
    if changes:
        with pytest.raises(ReleaseConflict, match=r"changed while it was read.*persist"):
            dpdist.release(spec("lazy"), data=frame, ledger=ledger)
        assert not list(Path("out/lazy").rglob("*.parquet"))
    else:
        dpdist.release(spec("lazy"), data=frame, ledger=ledger)
    assert len(readings) > 1


def test_memory_that_changes_while_it_is_read_is_refused(ledger: dpdist.Ledger) -> None:
    frame = people()

    def change(*_: object) -> None:
        frame.iloc[0, 0] = 89

    with pytest.raises(ReleaseConflict, match="the input changed while it was read"):
        dpdist.release(spec("memory"), data=frame, ledger=ledger, progress=change)
    assert not Path("out/memory/_manifest.json").exists()


def test_the_sweeper_does_not_open_pipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{PROBE}pipe")
    (tmp_path / f"{PROBE}file").touch()
    assert Store(tmp_path).sweep() == (f"{PROBE}file",)
    assert (tmp_path / f"{PROBE}pipe").exists()


MOVES = re.compile(rb"\x1b\[[0-9;]*[AKJ]")
"""What takes printed lines back: the cursor up, and erasing."""


def on_a_terminal(words: list[str], folder: Path, *, until: bytes) -> tuple[int, bytes]:
    """Run a command on a terminal, press Ctrl-C once it has printed a text; return its code and what it printed."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment, start_new_session=True
    )
    os.close(theirs)
    said, pressed, deadline = b"", False, time.monotonic() + 120
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    said += os.read(ours, 1 << 16)
                except OSError:  # the terminal is closed
                    break
            if until in said and not pressed:
                pressed = True
                process.send_signal(signal.SIGINT)
            if process.poll() is not None and not select.select([ours], [], [], 0.2)[0]:
                break
        return process.wait(60), said
    finally:
        process.kill()
        os.close(ours)


def test_ctrl_c_says_what_stays_charged(tmp_path: Path) -> None:
    pq.write_table(table(6_000), tmp_path / "table.parquet")
    fund(f"sqlite:///{tmp_path}/ledger.db")
    spec = {
        **placed(tmp_path, records=5_000),
        "kind": "synthesis",
        "schema": SCHEMA,
        "cluster": {"mode": "in-process"},
        "privacy": {"epsilon": 8, "delta": 1e-7},
        "synthesis": {"records": 20_000_000},
    }
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    code, said = on_a_terminal([sys.executable, "-m", "dpdist", "release", "spec.yaml"], tmp_path, until=b"counting")
    assert code == 130, said[-2000:]
    before, message, after = said.rpartition(b"dpdist: terminated; what was charged stays charged")
    assert message, said[-2000:]
    assert MOVES.search(before)  # bars were shown
    assert b"(--resume)" in after
    assert not MOVES.search(after), after


def test_a_refused_attempt_is_not_shown_as_drawing(tmp_path: Path) -> None:
    spec = HISTOGRAM.project(tmp_path)
    HISTOGRAM.spoil(tmp_path)
    with pytest.raises(OutOfDomain):
        run_release(spec)
    with closing(Books.open(spec.ledger)) as ledger:
        (attempt,) = ledger.show("people").attempts
        assert attempt.state == "drawing"  # its charge stays
        (run,) = list_runs(ledger, Store(tmp_path / "work"))
        assert run.state == "refused"


AMID_A_WRITE = r"""
import io, os, signal, sys, time
from dpdist.api.display import bars
from dpdist.cli import commands

class Terminal(io.FileIO):
    pressed = False
    def write(self, data):
        written = super().write(data)
        if b"counting" in bytes(data) and not self.pressed:
            self.pressed = True
            os.kill(os.getpid(), signal.SIGINT)
        return written

def app(**_):
    with bars() as progress:
        progress("counting", 0, 10)
        try:
            time.sleep(20)
        finally:
            raise ValueError("what fails on the way out")

sys.stderr = io.TextIOWrapper(io.BufferedWriter(Terminal(2, "wb", closefd=False)), line_buffering=True)
sys.argv = ["dpdist", "release", "spec.yaml"]
commands.app = app
commands.main()
"""


def test_ctrl_c_amid_a_write(tmp_path: Path) -> None:
    """Python lets no handler write to a stream that its thread writes to; and what fails on the way out is no end."""
    code, said = on_a_terminal([sys.executable, "-c", AMID_A_WRITE], tmp_path, until=b"never")
    assert code == 130, said
    message, after = said.split(b"dpdist: ")[1:], said.rpartition(b"dpdist: ")[2]
    assert len(message) == 1, said
    assert after.startswith(b"terminated; what was charged stays charged")
    assert not MOVES.search(after), after


def _with_paths(folder: Path, *paths: Any, **changes: Any) -> None:
    tree = federation(folder).model_dump(mode="json", by_alias=True)
    for client, path in zip(tree["federated"]["clients"], paths, strict=False):
        client["path"] = path
    load({**tree, **changes})


def test_two_clients_of_one_machine_name_different_files(tmp_path: Path) -> None:
    """One file was mixed twice, charged once to each of two data sets."""
    mine = f"{tmp_path}/north/people.parquet"
    link = tmp_path / "link.parquet"
    federation(tmp_path)
    link.symlink_to(mine)
    for other in (mine, f"{tmp_path}/south/../north/people.parquet", str(link), ["other.parquet", mine]):
        with pytest.raises(SpecError, match="have the same files"):
            _with_paths(tmp_path, mine, other)


def test_two_clients_name_different_objects_of_a_store(tmp_path: Path) -> None:
    address = {"mode": "address", "address": "tls://host:8786"}
    with pytest.raises(SpecError, match="have the same files"):
        _with_paths(tmp_path, "s3://bucket/people", "s3://bucket/people/", cluster=address)
    _with_paths(tmp_path, "/data/people.parquet", "/data/people.parquet", cluster=address)  # each on its own machine


def test_classes_in_another_order_are_the_same_release(tmp_path: Path) -> None:
    """What was confirmed of one class was taken for another one: 100 records were released as if they were 2,000."""
    table = MIXING.table(7_000)
    names = table["class"].to_pylist()
    few = [i for i, name in enumerate(names) if name == "high"][:100]
    pq.write_table(table.take(few + [i for i, name in enumerate(names) if name == "low"]), tmp_path / "table.parquet")
    each = {"minimum": 2_000, "records": 800}
    first, second = (
        MIXING.spec(tmp_path, mixing__classes={name: each for name in order})
        for order in (("low", "high"), ("high", "low"))
    )
    with closing(Books.open(first.ledger)) as ledger:
        ledger.create_dataset("people", epsilon=100, delta="1e-3")
    with Run(first) as run:
        run.steps["charge"]()
        run.steps["classes"]()
    outcome = run_release(second, attempt="resume")
    assert outcome.parameters["classes_left_out"] == ["high"]


@pytest.mark.parametrize("order", [("old", "children"), ("children", "old")])
def test_kinds_in_another_order_are_the_same_columns(tmp_path: Path, order: tuple[str, str]) -> None:
    """The noise of one column was drawn for the other one, and the difference of both was exact."""
    conditions = {"children": "age < 15", "old": "age >= 65"}
    spec = RELATIONAL.spec(tmp_path, members__kinds={name: conditions[name] for name in order})
    assert spec.layout.first.names[1:4] == ("(size)", "(of children)", "(of old)")  # type: ignore[attr-defined]


def test_aliases_in_another_order_have_the_same_meaning() -> None:
    """Two of them are one text in a CSV file, where blanks are removed."""
    aliases = {"a": "x", "a ": "y"}
    for order in (aliases, dict(reversed(aliases.items()))):
        attribute = Attribute(name="c", kind="categorical", values=("x", "y"), aliases=order)
        assert ColumnEncoder(attribute, strip=True)._known_texts["a"] == 1


def test_a_resume_reads_the_same_store(tmp_path: Path) -> None:
    """What an object is, the store says alone: one that lies gave the same noise for records that are known."""
    spec, other = (
        HISTOGRAM.spec(tmp_path, **storage) for storage in ({}, {"data__storage__endpoint_url": "http://127.0.0.1:1"})
    )
    HISTOGRAM.project(tmp_path)
    with Run(spec) as run:
        run.steps["charge"]()
    with pytest.raises(ReleaseConflict, match=r"another data\.storage"):
        run_release(other, attempt="resume")
    contract = Contract.model_validate(
        {
            "schema": spec.table,
            "data": {"path": spec.data.path},
            "minimum_records": HISTOGRAM.rows,
            "epsilon": 1,
            "delta": "1e-6",
        }
    )
    assert not contract.departures(spec, event=None)
    assert contract.departures(other, event=None) == [
        "data.storage.endpoint_url: the files are those of another store: leave it out, or declare it"
    ]
