"""Estimators of the ridge regression, and a whole release of many records: seconds, errors and memory."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from prediction_models import key, mean_sd, ridge
from prediction_simulated import g, inputs, simulated

from dpdist.evaluation.utility.learning import mse
from dpdist.families.prediction.second_stage import RegressionSpec


def estimators(trials: int) -> dict[str, Any]:
    """Distributed and Nystroem ridge regression against the exact one, at 10,000 records."""
    out: dict[str, dict[str, list[float]]] = {}
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        x, y = simulated(10_000, rng)
        test = inputs(4000, rng)
        sample = (np.arange(1000, dtype=np.uint64), x[:1000], y[:1000])
        for estimator, settings in {
            "exact": {},
            "distributed, 5 groups of 2,000": {"group_rows": 2000},
            "distributed, 20 groups of 500": {"group_rows": 500},
            "distributed, 100 groups of 100": {"group_rows": 100},
            "nystroem, 1,000 landmarks": {"landmarks": 1000},
            "nystroem, 200 landmarks": {"landmarks": 200},
        }.items():
            tree = {"estimator": estimator.split(",")[0], "width": 1.0, **settings}
            wanted = RegressionSpec.model_validate(tree)
            start = time.perf_counter()
            model = ridge(wanted, x, y, sample, key(trial))
            fitted = time.perf_counter()
            error = mse(g(test), model.predict(test))
            row = out.setdefault(estimator, {})
            row.setdefault("mse", []).append(error)
            row.setdefault("fit_seconds", []).append(fitted - start)
            row.setdefault("predict_4000_seconds", []).append(time.perf_counter() - fitted)
    return {name: {what: mean_sd(values) for what, values in row.items()} for name, row in out.items()}


def scale(rows: int) -> dict[str, Any]:
    """A whole release of `rows` records and ten columns, on two workers: seconds and the largest process."""
    import subprocess

    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        z = rng.multivariate_normal(np.zeros(9), 0.3 + 0.7 * np.eye(9), rows)
        y = np.sin(2 * z[:, 0]) + z[:, 1] * z[:, 2] + 0.5 * z[:, 3] + rng.normal(0, 0.5, rows)
        names = [f"x{i}" for i in range(9)]
        columns = [pa.array(column) for column in np.clip(z, -6, 6).T]
        table = pa.table([*columns, pa.array(np.clip(y, -30, 30))], names=[*names, "y"])
        pq.write_table(table, f"{folder}/table.parquet", row_group_size=100_000)
        attributes = [{"name": n, "kind": "number", "bounds": [-6, 6]} for n in names]
        attributes.append({"name": "y", "kind": "number", "bounds": [-30, 30]})
        out = {}
        for guarantee in ("lid", "dp"):
            tree: dict[str, Any] = {
                "kind": "two-stage",
                "name": guarantee,
                "dataset": "d",
                "schema": {"attributes": attributes},
                "data": {"path": f"{folder}/table.parquet", "minimum_records": round(0.9 * rows)},
                "output": {"path": f"{folder}/{guarantee}"},
                "ledger": f"sqlite:///{folder}/ledger.db",
                "work": f"{folder}/work",
                "cluster": {"workers": 2, "partitions": 10, "memory_limit": "3GiB"},
                "privacy": {"guarantee": "lid", "disclosure": {"lid": 0.5, "eta": 0.001}},
                "prediction": {"response": "y"},
            }
            if guarantee == "dp":
                tree["privacy"] = {"guarantee": "dp", "epsilon": 1, "delta": 1e-6}
                tree["prediction"] |= {"records": rows}
            Path(f"{folder}/{guarantee}.json").write_text(json.dumps(tree))
            Path(f"{folder}/{guarantee}.yaml").write_text(json.dumps(tree))
            command = [str(Path(sys.executable).parent / "dpdist")]
            if guarantee == "lid":
                create = [
                    "ledger",
                    "create",
                    "d",
                    "--epsilon",
                    "10",
                    "--delta",
                    "1e-5",
                    "--allow",
                    "dp",
                    "--allow",
                    "lid",
                ]
                subprocess.run([*command, *create, "--ledger", tree["ledger"]], check=True, capture_output=True)
            start = time.perf_counter()
            run = subprocess.Popen(
                [*command, "release", f"{folder}/{guarantee}.yaml"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            largest, total = watch(run)
            if run.returncode:
                raise RuntimeError((run.stderr.read() if run.stderr else b"").decode())
            record = next(iter(Path(f"{folder}/work").glob("*/run-record.json")))
            for each in Path(f"{folder}/work").glob("*/run-record.json"):
                if json.loads(each.read_text())["release"] == guarantee:
                    record = each
            out[guarantee] = {
                "rows": rows,
                "columns": 10,
                "seconds": round(time.perf_counter() - start, 1),
                "largest_process_mb": round(largest / 1e6),
                "all_processes_mb": round(total / 1e6),
                "stages": json.loads(record.read_text())["seconds"],
                "disclosure": json.loads(record.read_text()).get("disclosure"),
            }
        return out


def watch(run: Any) -> tuple[int, int]:
    """Largest resident size of one process of a run, and of all together, until it ends."""
    import psutil

    largest = total = 0
    process = psutil.Process(run.pid)
    while run.poll() is None:
        sizes = []
        try:
            for one in (process, *process.children(recursive=True)):
                sizes.append(one.memory_info().rss)
        except psutil.NoSuchProcess:
            continue
        largest, total = max([largest, *sizes]), max(total, sum(sizes))
        time.sleep(0.2)
    return largest, total
