"""What a row, a task and a byte cost; prediction against measurement at 1, 2 and 4 worker processes.

    python tests/benchmarks/bench_sizing.py --json bench/sizing.json [--rows 6000000] [--rounds 2] [--large SPEC ROWS]

Releases of a made-up table, a synthesis and one with seeds, run with 1, 2 and 4 embedded workers in turn; the quickest
of the rounds counts. Costs are fitted to the runs with 1 and 2 workers, and the run with 4 is predicted from them. What
a row costs is also measured in CPU seconds, in the threads of one process, where other work on the machine does not
disturb: these, and what fits take, are the `costs` of the JSON, those of `dpdist.sizing.cluster_size.MEASURED`, and
what `dpdist plan --cluster --costs FILE` takes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from dpdist.cluster.opening import WORKER_ENVIRONMENT, open_cluster
from dpdist.families.base import attempt
from dpdist.families.base.family import Plan
from dpdist.families.base.registry import load_spec, make_plan
from dpdist.families.base.workload import Layout
from dpdist.families.synthesis.workload import workload
from dpdist.release.run import run_release
from dpdist.sizing.calibration import STAGES, Measured, calibrate
from dpdist.sizing.cluster_size import predict, size_cluster
from dpdist.sizing.simulation import Costs, Prediction

ROOT = Path(__file__).parents[2]
DPDIST = [sys.executable, "-m", "dpdist"]
CALIBRATED, PREDICTED = (1, 2), 4
PARTITIONS = 16
SPECS = {"synthesis": "demo.yaml", "with seeds": "demo-seeds.yaml"}
OWN: dict[str, dict[str, Any]] = {"synthesis": {}, "with seeds": {"privacy.limit": 50}}
"""Specs, and what is changed in them: a million records with seeds cost more than the spec's limit."""

CORES = len(os.sched_getaffinity(0))


def cost_of_a_worker() -> float:
    """CPU seconds of the start and the end of a worker process.

    Twice as many processes as cores take longer than as many by the CPU seconds of one.
    """
    times: dict[int, float] = {}
    for number in (CORES, 2 * CORES) * 3:
        start = time.perf_counter()
        with open_cluster(workers=number):
            pass
        times[number] = min(times.get(number, math.inf), time.perf_counter() - start)
    return max(times[2 * CORES] - times[CORES], 0.0)


def cost_of_a_task(tasks: int = 2_000) -> float:
    """Seconds of a task that does nothing, with TLS as releases have it."""
    from dask import delayed

    with open_cluster(workers=2) as cluster:
        best = float("inf")
        for attempt in range(3):
            graphs = [delayed(int, pure=False)(i, dask_key_name=f"nothing-{attempt}-{i}") for i in range(tasks)]
            start = time.perf_counter()
            cluster.compute(graphs)
            best = min(best, time.perf_counter() - start)
    return best / tasks


def cost_of_a_stage() -> float:
    """Seconds of a stage that does nothing, as releases run them."""
    from dask import delayed

    times = []
    with open_cluster(workers=2) as cluster:
        for attempt in range(8):
            start = time.perf_counter()
            graph = delayed(int, pure=False)(attempt, dask_key_name=f"stage-{attempt}")
            cluster.compute([graph], progress=lambda done, total: None)
            times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def cost_of_a_byte(size: int = 1 << 24) -> float:
    """Seconds of a byte that one worker fetches from another and adds."""
    import numpy as np

    with open_cluster(workers=2) as cluster:
        client = cluster.client
        first, second = client.nthreads()
        best = float("inf")
        for attempt in range(4):
            there = client.submit(np.ones, size // 8, np.int64, workers=[first], key=f"there-{attempt}")
            here = client.submit(np.ones, size // 8, np.int64, workers=[second], key=f"here-{attempt}")
            client.gather(client.map(len, [there, here]))
            start = time.perf_counter()
            total = client.submit(np.add, there, here, workers=[second], key=f"sum-{attempt}")
            client.gather(client.submit(len, total, workers=[second], key=f"len-{attempt}"))
            best = min(best, time.perf_counter() - start)
    return best / size


def cpu_costs(folder: Path, rows: int, records: int) -> dict[str, float]:
    """CPU seconds of each unit of work: releases in the threads of this process, their stages timed by its own clock.

    The synthesis adds every record to every table, so what an increment costs is what its counting takes beside the
    reading; all else is taken from the release with seeds. What a cell costs is not CPU time: the driver estimates it
    with the cores it has, and the fits of the synthesis in the other runs tell how long.
    """
    plan, spent = cpu_seconds(folder, "with seeds", rows, records)
    width, share = len(plan.spec.table.attributes), plan.spec.split  # type: ignore[attr-defined]
    units = {
        "reading": rows * width,
        "learning parameters": rows * float(share.parameters) * width,
        "indexing seeds": rows * float(share.seeds),
        "synthesising": records * width,
        "writing": records * width,
    }
    costs = {STAGES[stage]: spent[stage] / number for stage, number in units.items()}
    whole, spent = cpu_seconds(folder, "synthesis", rows, records)
    layout = Layout(workers=1, memory=8, partitions=PARTITIONS)
    counting = next(work for work in workload(whole, layout) if work.name == "counting").units  # type: ignore[arg-type]
    adding = spent["counting"] - counting["read"] * costs["read"]
    return costs | {"increment": max(adding, 0.0) / counting["increment"]}


def cpu_seconds(folder: Path, kind: str, rows: int, records: int) -> tuple[Plan, dict[str, float]]:
    """The plan of a release, and the CPU seconds of its stages."""
    chosen = settings(folder, rows, 1, records) | {"cluster.mode": "threads", "cluster.partitions": PARTITIONS}
    chosen |= OWN[kind]
    del chosen["cluster.workers"]
    spec = load_spec(ROOT / "deploy/releases" / SPECS[kind], chosen)
    with contextlib.chdir(folder), mock.patch.object(attempt.time, "perf_counter", time.process_time):
        outcome = run_release(spec)
    plan = make_plan(load_spec(ROOT / "deploy/releases" / SPECS[kind], chosen | {"data.minimum_records": rows}))
    return plan, json.loads(Path(outcome.run_record).read_text())["seconds"]


def settings(folder: Path, rows: int, workers: int, records: int) -> dict[str, Any]:
    """The release that is timed."""
    return {
        "data.path": str(folder / "table"),
        "data.minimum_records": rows * 9 // 10,
        "synthesis.records": records,
        "output.path": str(folder / f"out-{workers}-{time.monotonic_ns()}"),
        "name": f"sizing-{workers}-{time.monotonic_ns()}",
        "ledger": f"sqlite:///{folder}/ledger.db",
        "work": str(folder / "work"),
        "cluster.workers": workers,
        "cluster.partitions": PARTITIONS,
    }


def timed(folder: Path, spec: str, chosen: dict[str, Any]) -> tuple[float, dict[str, float]]:
    """Seconds of a release, process start included, and of each stage."""
    sets = [part for name, value in chosen.items() for part in ("--set", f"{name}={value}")]
    command = [*DPDIST, "release", str(ROOT / "deploy/releases" / spec), "--json", *sets]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(done.stderr)
    record = json.loads((folder / json.loads(done.stdout)["run_record"]).read_text())
    return seconds, record["seconds"]


Runs = dict[int, tuple[float, dict[str, float]]]


def measure(rows: int, records: int, rounds: int) -> tuple[dict[str, Runs], dict[str, float]]:
    """The quickest run of each kind with each number of workers, the numbers in turn; and the CPU seconds of units."""
    best: dict[str, Runs] = {kind: {} for kind in SPECS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        piece = min(rows, 1_000_000)
        sample = [*DPDIST, "sample", "sample", "--rows", str(piece)]
        subprocess.run(sample, cwd=folder, check=True, capture_output=True)
        (folder / "table").mkdir()
        for number in range(rows // piece):  # the same rows again: what they hold costs nothing
            for part in sorted((folder / "sample").glob("*.parquet")):
                (folder / "table" / f"{number:04}-{part.name}").hardlink_to(part)
        ledger = ["ledger", "create", "demo", "--epsilon", "99", "--delta", "1e-6", "--ledger", f"{folder}/ledger.db"]
        kinds = [part for kind in ("dp", "pd-per-record") for part in ("--allow", kind)]
        subprocess.run([*DPDIST, *ledger, *kinds], cwd=folder, check=True, capture_output=True)
        for _ in range(rounds):
            for kind, spec in SPECS.items():
                for workers in (*CALIBRATED, PREDICTED):
                    found = timed(folder, spec, settings(folder, rows, workers, records) | OWN[kind])
                    print(f"{kind}, {workers} workers: {found[0]:.2f} s", file=sys.stderr)
                    if workers not in best[kind] or found[0] < best[kind][workers][0]:
                        best[kind][workers] = found
        return best, cpu_costs(folder, rows, records)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--large", nargs=2, default=["deploy/releases/census-100m.yaml", "1000000000"])
    options = parser.parse_args()
    os.environ.update({name: str(value) for name, value in WORKER_ENVIRONMENT.items()})
    base = {
        "worker": cost_of_a_worker(),
        "stage": cost_of_a_stage(),
        "task": cost_of_a_task(),
        "byte": cost_of_a_byte(),
    }
    best, units = measure(options.rows, options.records, options.rounds)
    compared = {kind: compare(kind, best[kind], options.rows, options.records, base) for kind in SPECS}
    costs = replace(compared["with seeds"][0], **units, cell=compared["synthesis"][0].cell)
    print(f"{CORES} cores, {options.rows:,} rows, {options.records:,} records released")
    print("kind         workers   measured  predicted   difference")
    for kind, (_, predicted) in compared.items():
        for n, (seconds, _) in best[kind].items():
            print(f"{kind:<12} {n:>7} {seconds:>10.2f} {predicted[n].seconds:>10.2f} ", end="")
            print(f"{predicted[n].seconds / seconds - 1:>12.1%}")
    print("\n" + "\n".join(f"    {name}={value:.3g}," for name, value in costs.to_json().items()))
    spec, rows = options.large
    large = size_cluster(make_plan(load_spec(ROOT / spec, {"data.minimum_records": int(rows)})), costs=costs)
    print(f"\n{spec} with {int(rows):,} records\n\n{large.explain()}")
    if options.json:
        report: dict[str, Any] = {"cores": CORES, "rows": options.rows, "records": options.records}
        report |= {"costs": costs.to_json(), "large": large.to_json()}
        for kind, (fitted, predicted) in compared.items():
            report[kind] = {
                "fitted": fitted.to_json(),
                "measured": {n: {"seconds": round(s, 2), "stages": stages} for n, (s, stages) in best[kind].items()},
                "predicted": {n: round(p.seconds, 2) for n, p in predicted.items()},
                "difference_at_4": round(predicted[PREDICTED].seconds / best[kind][PREDICTED][0] - 1, 4),
            }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=2))


def compare(
    kind: str, best: Runs, rows: int, records: int, base: dict[str, float]
) -> tuple[Costs, dict[int, Prediction]]:
    """Costs that are fitted to the runs of a kind with 1 and 2 workers, and what they predict."""
    chosen = settings(Path("/"), rows, 1, records) | {"data.minimum_records": rows} | OWN[kind]
    plan = make_plan(load_spec(ROOT / "deploy/releases" / SPECS[kind], chosen))
    layout = {n: Layout(workers=n, memory=8, partitions=PARTITIONS) for n in best}
    runs = [Measured(layout=layout[n], cores=CORES, seconds=best[n][0], stages=best[n][1]) for n in CALIBRATED]
    fitted = calibrate(plan, runs, **base)
    return fitted, {n: predict(plan, layout[n], costs=fitted, cores=CORES) for n in best}


if __name__ == "__main__":
    main()
