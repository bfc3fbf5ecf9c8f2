"""Ours and other packages side by side, in one run, on public tables: quality, seconds and memory at one budget.

    python tests/benchmarks/peers/run.py --json bench/compare.json [--tables adult] [--methods ours mst ...]

Four fifths of each table go in, as codes of its public schema in `deploy/releases/schemas`; as many records come out,
at epsilon 0.1, 1, 3 and 8 and delta 1e-9. The last fifth tests what was learned. Each peer runs in an environment of
its own below the cache folder (`DPDIST_COMPARE_CACHE`, default `~/.cache/dpdist-compare`), made on first use by uv from
the package index; none of them is a dependency. Methods of private-pgm need a checkout of August 2025, which
`DPDIST_PRIVATE_PGM` names. Ours is the command line as a user runs it, ledger included.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from quality import Quality

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench_wide import spec_of
from harness import DATA, argument_parser, write
from wide_tables import PERSONS, schema_of_persons

from dpdist.data.inputs import table_source
from dpdist.data.operators import gather_operator
from dpdist.data.table import open_table
from dpdist.families.base.graph import run_pass
from dpdist.publish.verify import read_release
from dpdist.spec.reader import load
from dpdist.spec.schema import Schema

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CACHE = Path(os.environ.get("DPDIST_COMPARE_CACHE", Path.home() / ".cache" / "dpdist-compare"))
FILES = {
    "acs2013": ["acs2013_sgf_100k.csv"],
    "adult": ["adult.data", "adult.test"],
    "acs2024": ["acs2024_workers.parquet"],
    "persons": [PERSONS],
}
TARGETS = {"acs2013": "incc", "adult": "income", "acs2024": "incc", "persons": "HICOV"}
SECONDS = {"acs2013": 1800, "adult": 1800, "acs2024": 300, "persons": 600}
"""CPU seconds that a method may take on a table: fair on a machine that does other work as well."""

SEED = 0


@dataclass(frozen=True)
class Peer:
    """A method of another package.

    Attributes
    ----------
    environment : str
    requirements : tuple of str
    without : tuple of str
        Requirements that are installed without what they ask for: smartnoise-synth wants PyTorch for its networks only.
    """

    environment: str
    requirements: tuple[str, ...]
    without: tuple[str, ...] = ()


_DPMM = Peer("dpmm", ("dpmm==0.1.9",))
_PGM = Peer("private-pgm", ("jax==0.7.2", "attrs", "chex", "matplotlib", "networkx", "optax", "pandas<3", "scipy"))
PEERS = {
    "aim": _DPMM,
    "mst": _DPMM,
    "privbayes": _DPMM,
    "aim-pgm": _PGM,
    "mst-pgm": _PGM,
    "mst-smartnoise": Peer(
        "smartnoise",
        ("mbi==1.1.0", "disjoint-set>=0.9,<0.10", "faker>=17", "smartnoise-sql==1.0.10", "networkx", "scipy"),
        ("smartnoise-synth==1.0.8",),
    ),
    "privbayes-datasynthesizer": Peer("datasynthesizer", ("DataSynthesizer==0.1.13",)),
}
OURS = ("synthesis", "ours", "independent")
NOTES = {
    "aim": "takes the number of records from the data",
    "mst": "takes the number of records from the data",
    "privbayes": "takes the number of records from the data",
    "aim-pgm": "takes the number of records from the data",
    "mst-pgm": "takes the number of records from the data",
    "mst-smartnoise": "takes the number of records and the values that occur from the data",
    "privbayes-datasynthesizer": "pure epsilon; takes the number of records from the data",
}
"""What a method uses that its stated guarantee does not cover."""


def python_of(peer: Peer) -> Path:
    """The interpreter of a peer's environment, which is made if none exists."""
    folder = CACHE / peer.environment
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        uv = Path(sys.executable).with_name("uv")
        print(f"installing {', '.join(peer.requirements + peer.without)} into {folder}", flush=True)
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", python]
        subprocess.run([*install, *peer.requirements], check=True)
        if peer.without:
            subprocess.run([*install, "--no-deps", *peer.without], check=True)
        (folder / ".ready").touch()
    return python


class Watch(threading.Thread):
    """Largest resident memory, and CPU seconds, of a process and everything below it."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._root, self.peak, self._cpu = psutil.Process(pid), 0, {}

    def run(self) -> None:
        """Look twenty times a second until the process ends."""
        while self._root.is_running():
            together = 0
            try:
                if self._root.status() == psutil.STATUS_ZOMBIE:
                    return
                for process in [self._root, *self._root.children(recursive=True)]:
                    together += process.memory_info().rss
                    self._cpu[process.pid] = sum(process.cpu_times()[:2])
            except psutil.Error:  # one of them has just ended
                pass
            self.peak = max(self.peak, together)
            time.sleep(0.05)

    @property
    def cpu(self) -> float:
        """CPU seconds of all processes."""
        return sum(list(self._cpu.values()))


@dataclass(frozen=True)
class Limit:
    """How long a command may take: CPU seconds, and seconds by the clock."""

    cpu: float
    clock: float

    def passed(self, cpu: float, clock: float) -> str | None:
        """Why it is stopped, if it is."""
        if cpu > self.cpu:
            return f"stopped after {self.cpu:g} CPU seconds"
        return "stopped by the clock" if clock > min(self.clock, 10 * self.cpu) else None


def measured(command: list[str | Path], folder: Path, limit: Limit) -> dict[str, Any]:
    """Run a command in a folder; wall and CPU seconds and peak memory of all its processes, or why it failed.

    It is stopped at its limit of CPU seconds, or after ten times as many by the clock.
    """
    start = time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(ROOT)} if command[0] == sys.executable else os.environ
    failed = None
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(list(map(str, command)), cwd=folder, env=environment, stdout=output, stderr=output)
        watch = Watch(process.pid)
        watch.start()
        while process.poll() is None:
            failed = limit.passed(watch.cpu, time.perf_counter() - start)
            if failed:
                with suppress(psutil.Error):  # one of them has just ended
                    for child in [*psutil.Process(process.pid).children(recursive=True), process]:
                        child.kill()
            time.sleep(0.05)
    seconds = time.perf_counter() - start
    if failed is None and process.returncode:
        failed = f"failed with code {process.returncode}"
        print((folder / "output.txt").read_text()[-2000:], file=sys.stderr)
    watch.join()
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(watch.cpu, 1),
        "peak_mb": round(watch.peak / 1e6),
        "failed": failed,
    }


def coded(schema: Schema) -> dict[str, Any]:
    """A schema whose values are the codes of another."""
    attributes = []
    for a in schema.attributes:
        entry: dict[str, Any] = {"name": a.name, "buckets": a.bucket_map.tolist()}
        if a.kind == "categorical":
            entry |= {"kind": "categorical", "values": list(range(a.cardinality))}
        else:
            entry |= {"kind": "integer", "bounds": [0, a.cardinality - 1]}
        attributes.append(entry)
    return {"attributes": attributes}


def ours(
    name: str, codes: np.ndarray, schema: Schema, folder: Path, *, epsilon: float, delta: float, limit: Limit
) -> tuple[dict[str, Any], np.ndarray | None]:
    """A release by the command line, without seeds: a synthesis, or a network or marginals of which every attribute is
    resampled.
    """
    pq.write_table(pa.table({n: codes[:, i] for i, n in enumerate(schema.names)}), folder / "table.parquet")
    structure = "0" if name == "independent" else "3/20"
    spec = {
        "kind": "plausible-deniability",
        "name": "compared",
        "dataset": "compared",
        "schema": coded(schema),
        "data": {"path": "table.parquet", "minimum_records": int(0.95 * len(codes))},
        "output": {"path": "release", "values": "codes", "bins": "label"},
        "privacy": {"model": {"epsilon": epsilon, "delta": delta}},
        "model": {"structure": "independent" if name == "independent" else "learned"},
        "split": {"structure": structure, "parameters": "1" if name == "independent" else "17/20", "seeds": "0"},
        "synthesis": {"records": len(codes), "omega": "all"},
    }
    if name == "synthesis":
        spec = {key: spec[key] for key in ("name", "dataset", "schema", "data", "output")} | {
            "kind": "synthesis",
            "privacy": {"epsilon": epsilon, "delta": delta},
            "synthesis": {"records": len(codes)},
        }
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    dpdist: list[str | Path] = [sys.executable, "-m", "dpdist"]
    create = [*dpdist, "ledger", "create", "compared", "--epsilon", str(2 * epsilon), "--delta", str(10 * delta)]
    measured(create, folder, limit)
    result = measured([*dpdist, "release", "spec.yaml", "--json"], folder, limit)
    if result["failed"]:
        return result, None
    released = read_release(str(folder / "release"))
    return result, np.stack([released[n].to_numpy() for n in schema.names], axis=1)


def peers(
    name: str, codes: np.ndarray, schema: Schema, folder: Path, *, epsilon: float, delta: float, limit: Limit
) -> tuple[dict[str, Any], np.ndarray | None]:
    """A release by another package."""
    np.savez(folder / "in.npz", codes=codes, sizes=np.array(schema.cardinalities))
    command: list[str | Path] = [python_of(PEERS[name]), HERE / "peer.py", name, "in.npz", "out.npz"]
    command += ["--epsilon", str(epsilon), "--delta", str(delta), "--records", str(len(codes))]
    result = measured(command, folder, limit)
    if result["failed"]:
        return result, None
    return result, np.load(folder / "out.npz")["codes"]


def table(name: str, rows: int | None) -> tuple[np.ndarray, Schema]:
    """The codes of a public table, in random order."""
    paths = [str(DATA / file) for file in FILES[name]]
    if name == "persons":
        plain = argparse.Namespace(epsilon=1.0, kind="synthesis")
        spec = load(spec_of(schema_of_persons(DATA / PERSONS), DATA / PERSONS, 398_556, plain))
    else:
        spec = load(ROOT / f"deploy/releases/{name}.yaml", {"data.path": paths})
    columns, _ = run_pass(open_table(table_source(spec), spec.table), gather_operator())
    codes = np.stack([column.astype(np.uint16) for column in columns], axis=1)
    order = np.random.default_rng(SEED).permutation(len(codes))
    return codes[order[:rows]], spec.table


def compare(name: str, options: argparse.Namespace, end: float) -> Iterator[dict[str, Any]]:
    """One row per method; none for methods that could not begin before the clock says `end`."""
    codes, schema = table(name, options.rows)
    cut = len(codes) * 4 // 5
    train, test = codes[:cut], codes[cut:]
    quality = Quality(train, test, schema, target=TARGETS[name], seed=SEED)
    yield {"table": name, "method": "real records", "records": cut, **quality.of(train)}
    again = train[np.random.default_rng(1).integers(0, cut, cut)]
    yield {"table": name, "method": "sample of the real records", "records": cut, **quality.of(again)}
    for epsilon, method in product(options.epsilon, options.methods):
        left = end - time.monotonic()
        if left <= 0:
            return
        run = ours if method in OURS else peers
        limit = Limit(options.seconds or SECONDS[name], left)
        with tempfile.TemporaryDirectory() as folder:
            result, made = run(method, train, schema, Path(folder), epsilon=epsilon, delta=options.delta, limit=limit)
        found = quality.of(made) if made is not None else {}
        budget = {"epsilon": epsilon, "delta": options.delta}
        note = NOTES.get(method, "")
        yield {"table": name, "method": method, "records": cut, **budget, **result, **found, "note": note}


def main() -> None:
    """Compare; print one line per method, write JSON."""
    parser = argument_parser(__doc__)
    parser.add_argument("--tables", nargs="*", choices=list(FILES), default=list(FILES))
    there = [name for name, peer in PEERS.items() if peer is not _PGM or "DPDIST_PRIVATE_PGM" in os.environ]
    parser.add_argument("--methods", nargs="*", choices=[*OURS, *PEERS], default=[*OURS, *there])
    parser.add_argument("--epsilon", nargs="*", type=float, default=[0.1, 1.0, 3.0, 8.0])
    parser.add_argument("--delta", type=float, default=1e-9)
    parser.add_argument("--rows", type=int, help="records of each table, for a quick look")
    parser.add_argument("--seconds", type=float, help="CPU seconds that a method may take; default: by table")
    parser.add_argument("--minutes", type=float, default=math.inf, help="by the clock, for everything")
    options = parser.parse_args()
    for method in options.methods:
        if method in PEERS:
            python_of(PEERS[method])
    end, rows = time.monotonic() + 60 * options.minutes, []
    for name in options.tables:
        for row in compare(name, options, end):
            rows.append(row)
            print(json.dumps(row), flush=True)
            write(options, rows)  # each time: a run that is stopped keeps what it has


if __name__ == "__main__":
    main()
