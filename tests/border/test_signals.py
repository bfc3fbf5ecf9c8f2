"""Ctrl-C on a real terminal, while bars are shown: it says what stays charged, and how to go on."""

from __future__ import annotations

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

import pyarrow.parquet as pq
import pytest
from cases import HISTOGRAM
from releases import SCHEMA, table

from dpdist.errors import OutOfDomain
from dpdist.ledger import Books
from dpdist.lifecycle.history import list_runs
from dpdist.lifecycle.run import run_release
from dpdist.storage.store import Store

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
    with closing(Books.open(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        ledger.create_dataset("people", epsilon="50", delta="1e-5")
    spec = {
        "kind": "synthesis",
        "name": "first",
        "dataset": "people",
        "schema": SCHEMA,
        "data": {"path": "table.parquet", "minimum_records": 5_000},
        "output": {"path": "release"},
        "ledger": f"sqlite:///{tmp_path}/ledger.db",
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
