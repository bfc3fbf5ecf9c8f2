"""Rate of the mixtures against the memory bandwidth of gathering their rows, both measured in the same run.

Run ``python tests/benchmarks/bench_mixing.py --json mixing.json``. Sampling, gathering, summing, noise and rounding are
all in the measured time; the bound only reads the same rows, in the same order, on the same processes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from dpdist.families.mixing.mixture import Mixer, clip_rows
from dpdist.privacy.noise import Noise

CLIP, SIGMA_OVER_CLIP = 8.0, 0.0255
NOISE = Noise(bytes(32))
GATHERED = 1 << 19  # bytes gathered at a time

rows = np.empty((0, 0), np.float32)  # the table, shared with the processes by fork


def mixtures(mixer: Mixer, start: int, stop: int) -> None:
    """Make mixtures, as a task does."""
    for a, b in mixer.blocks(start, stop, width=rows.shape[1]):
        mixer.mixtures(NOISE, rows, a, b)


def sample(mixer: Mixer, start: int, stop: int) -> None:
    """Only sample their rows."""
    for a, b in mixer.blocks(start, stop, width=rows.shape[1]):
        mixer.sample(NOISE, a, b, size=len(rows))


def finish(mixer: Mixer, start: int, stop: int) -> None:
    """Only add noise."""
    for a, b in mixer.blocks(start, stop, width=rows.shape[1]):
        mixer.finish(NOISE, np.zeros((b - a, rows.shape[1]), np.float32), a)


def gather(mixer: Mixer, start: int, stop: int) -> None:
    """Only read the rows that mixtures take; one block's rows, again and again."""
    width = rows.shape[1]
    first = next(mixer.blocks(start, stop, width=width))
    indices = mixer.sample(NOISE, *first, size=len(rows)).reshape(-1)
    block = max(1, GATHERED // (4 * width))
    buffer = np.empty((block, width), np.float32)
    left = (stop - start) * mixer.order
    while left > 0:
        for begin in range(0, min(len(indices), left), block):
            taken = indices[begin : begin + block]
            rows.take(taken, axis=0, out=buffer[: len(taken)], mode="clip")
        left -= len(indices)


def stream(mixer: Mixer, start: int, stop: int) -> None:
    """Read as many bytes in order."""
    left = (stop - start) * mixer.order * rows.shape[1]
    flat = rows.reshape(-1)
    while left > 0:
        flat[:left].max()
        left -= flat.size


def seconds(work: Callable[[Mixer, int, int], None], mixer: Mixer, records: int, processes: int) -> float:
    """Time of the work, shared evenly by processes that start together."""
    context = multiprocessing.get_context("fork")
    ready, go = context.Barrier(processes + 1), context.Barrier(processes + 1)
    cuts = [records * i // processes for i in range(processes + 1)]

    def run(start: int, stop: int) -> None:
        work(mixer, start, min(start + 1000, stop))  # tables, imports
        ready.wait()
        go.wait()
        work(mixer, start, stop)

    workers = [context.Process(target=run, args=(start, stop)) for start, stop in pairwise(cuts)]
    for worker in workers:
        worker.start()
    ready.wait()
    begin = time.perf_counter()
    go.wait()
    for worker in workers:
        worker.join()
    return time.perf_counter() - begin


def main() -> None:
    """Print the rates and, with ``--json``, write them."""
    global rows
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the measurements to this file")
    parser.add_argument("--records", type=int, default=1_000_000, help="mixtures")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the class")
    parser.add_argument("--order", type=int, default=64)
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    table = np.random.default_rng(0).normal(size=(arguments.rows, arguments.width)).astype(np.float32)
    rows = clip_rows(table, clip=CLIP)
    mixer = Mixer(order=arguments.order, clip=CLIP, sigma=CLIP * SIGMA_OVER_CLIP, name="mixing/0")
    gigabytes = arguments.records * arguments.order * arguments.width * 4 / 1e9
    times = {}
    for work in (gather, mixtures, gather, mixtures, stream, sample, finish):
        took = seconds(work, mixer, arguments.records, arguments.processes)
        times[work.__name__] = min(took, times.get(work.__name__, took))
    for name, took in times.items():
        print(f"{name:<9} {took:7.2f} s   {gigabytes / took:6.1f} GB/s")
    ratio, ratio_stream = times["mixtures"] / times["gather"], times["mixtures"] / times["stream"]
    rate = arguments.records / times["mixtures"]
    print(f"{rate:,.0f} mixtures a second: {ratio:.2f} times the gathering, {ratio_stream:.2f} times a read in order")
    if arguments.json:
        machine = {"machine": platform.machine(), "python": platform.python_version(), "numpy": np.__version__}
        settings = {name: value for name, value in vars(arguments).items() if name != "json"}
        result = {
            **machine,
            **settings,
            "seconds": times,
            "mixtures_per_second": rate,
            "times_gathering": ratio,
            "times_reading_in_order": ratio_stream,
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
