"""Common parts of the benchmarks: arguments, timing, and results as JSON with machine, version and command."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import dpdist
from dpdist.data.inputs import table_source
from dpdist.data.operators import gather_operator
from dpdist.data.table import open_table
from dpdist.families.base.graph import run_pass
from dpdist.families.base.plan import Plan
from dpdist.families.base.registry import stages_of
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.spec.release import ReleaseSpec

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("DPDIST_DATA", ROOT.parent / "shared" / "data"))


def argument_parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser with ``--json``, described by the first line of a script's docstring."""
    title = (text or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=title)
    parser.set_defaults(title=title.rstrip("."))
    parser.add_argument("--json", type=Path, help="file to write")
    return parser


class Clock:
    """Seconds and CPU seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._start[0]

    @property
    def cpu(self) -> float:
        """Return the CPU seconds of this process since the start."""
        return time.process_time() - self._start[1]


def machine() -> str:
    """Describe the machine: processor, cores, memory and load."""
    model = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
        model = found[1] if found else model
    memory = psutil.virtual_memory().total / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, load {os.getloadavg()[0]:.0f}"


def command() -> str:
    """Return the command line of this run, relative to the root."""
    script, *rest = sys.argv
    return " ".join(["python", os.path.relpath(script, ROOT), *rest])


def write(options: argparse.Namespace, rows: Any) -> None:
    """Write rows to the file of ``--json``: a table if they are flat mappings, as they are otherwise."""
    if not options.json:
        return
    about = {"title": options.title, "command": command(), "machine": machine()}
    if isinstance(rows, Sequence) and rows and all(isinstance(row, Mapping) for row in rows):
        columns = list(dict.fromkeys(name for row in rows for name in row))
        tables = {
            "rows": about | {"columns": columns, "rows": [[row.get(name, "") for name in columns] for row in rows]}
        }
    else:
        tables = {"rows": about | {"results": rows}}
    write_tables(options.json, tables)


def write_each(options: argparse.Namespace, rows: Iterable[Mapping[str, Any]]) -> None:
    """Print each row as it is found, then write all of them to the file of ``--json``."""
    found = []
    for row in rows:
        print(json.dumps(row, default=str), flush=True)
        found.append(row)
    write(options, found)


def codes_of(spec: ReleaseSpec) -> Codes:
    """The codes of the table of a spec."""
    codes: Codes = run_pass(open_table(table_source(spec), spec.table), gather_operator())[0]
    return codes


def key_of(*seed: int) -> KeyRef:
    """A key of noise that these numbers name."""
    return key_from(Noise(np.random.default_rng(list(seed)).bytes(32)))


def rehearsed(plan: Plan, codes: Codes, key: KeyRef) -> Codes:
    """The codes of the records that a plan releases of these codes with this key."""
    return released_codes(rehearse(plan, stages_of(plan), codes, key=key))


def keep(file: str, key: str, about: Mapping[str, str], columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table of ``results/<file>.json`` again; `about` has its title and perhaps a note."""
    path = Path(__file__).parent / "results" / f"{file}.json"
    tables = json.loads(path.read_text())["tables"] if path.exists() else {}
    tables[key] = {"command": command(), "machine": machine()} | about | {"columns": columns, "rows": rows}
    write_tables(path, tables)


def write_tables(path: Path, tables: Mapping[str, Any]) -> None:
    """Write tables in the format of ``results/``: one row of a table on each line."""
    text = json.dumps({"version": dpdist.__version__, "tables": tables}, ensure_ascii=False, indent=1, default=str)
    flat = re.sub(
        r"\[\s*((?:[^\[\]{}\"]|\"(?:[^\"\\]|\\.)*\")*?)\s*\]",
        lambda found: "[" + re.sub(r"\n\s*", " ", found[1]) + "]",
        text,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(flat + "\n")
