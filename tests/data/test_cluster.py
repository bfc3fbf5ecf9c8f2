"""Clusters: what embedded workers find in their environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys

SCRIPT = """
import json, os
from dpdist.data.cluster import open_cluster
if __name__ == "__main__":
    with open_cluster(workers=1) as cluster:
        found = cluster._client.submit(lambda: dict(os.environ)).result()
    print(json.dumps(found))
"""


def test_embedded_workers_keep_their_memory_and_use_one_thread() -> None:
    """Dask's default returns every array to the kernel: four times the CPU. In a process of its own: Dask leaks it."""
    plain = {name: value for name, value in os.environ.items() if name != "MALLOC_TRIM_THRESHOLD_"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=plain)
    environment = json.loads(done.stdout)
    assert "MALLOC_TRIM_THRESHOLD_" not in environment
    assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "1"
