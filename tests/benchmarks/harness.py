"""Common parts of the benchmarks: arguments, timing, and results as JSON with machine, version and command."""

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

import psutil

import dpdist
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.schema import Schema

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("DPDIST_DATA", ROOT.parent / "shared" / "data"))


def argument_parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser with ``--json``, described by the first line of a script's docstring."""
    title = (text or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=title)
    parser.set_defaults(title=title.rstrip("."))
    parser.add_argument("--json", type=Path, help="file to write")
    return parser


def spec_without_places(kind: str, schema: Schema | Mapping[str, Any], records: int, **sections: Any) -> ReleaseSpec:
    """A spec that is planned and rehearsed alone: of a table of this schema, which declares this many records."""
    table = schema.model_dump(mode="json", exclude_none=True) if isinstance(schema, Schema) else schema
    data, output = {"path": "unused", "minimum_records": records}, {"path": "unused"}
    tree = {"kind": kind, "name": "bench", "dataset": "bench", "schema": table, "data": data, "output": output}
    return load(tree | sections)


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


def write_rows(options: argparse.Namespace, rows: Iterable[Mapping[str, Any]]) -> None:
    """Print each row as it is made, and write all so far to the file of ``--json``."""
    made = []
    for row in rows:
        print(json.dumps(row), flush=True)
        made.append(row)
        write(options, made)


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
