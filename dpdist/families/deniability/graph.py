"""Candidates as task graphs: seed indexes, batches of candidates, parts of the released records.

One index holds all seeds where it fits a worker (`seed_operator`). Otherwise `sharded_seeds` cuts the keys into ranges
of about the same size, one index each, and a batch of candidates asks every range for its seeds and for its counts, and
adds the answers: the same bits.

A batch is a fixed, public range of candidate numbers. Its passing records stay on the worker; only their number goes to
the driver, which decides how many batches are made. The released records are the first ones that pass, in candidate
order, cut into parts of a fixed number of rows: neither the sizes nor the names of parts tell how many passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdist.data.records import slices
from dpdist.families.deniability import prefixes
from dpdist.families.deniability.deniability import (
    CandidateRecords,
    Passed,
    PrivacyTest,
    SeedSynthesis,
    candidate_batch,
    seed_ranks,
)
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes, Counts, spans_of

if TYPE_CHECKING:
    from dpdist.cluster.executor import Deferred, Executor


def shard_count(code: prefixes.PrefixCode, *, records: int, memory: int) -> int:
    """Ranges that the seeds (`records`, or an upper bound) are cut into so that the index of each takes about `memory`
    bytes: a fraction of a worker's, since building an index takes a few times its size.
    """
    return max(1, -(-code.index_bytes(records) // memory))


def sharded_seeds(
    executor: Executor, parts: Sequence[Deferred], code: prefixes.PrefixCode, *, shards: int
) -> list[Deferred]:
    """Graphs of one `SeedIndex` for each range of keys, ascending; `parts` are the seeds of each partition."""
    task = executor.tasks("seeds")
    keys = [task("keys", prefixes.seed_keys, code, part) for part in parts]
    histogram = task.tree("sum", _add_all, [task("histogram", prefixes.key_histogram, code, key) for key in keys])
    ranges = task("ranges", prefixes.key_ranges, code, histogram, shards)
    indexes = []
    for shard in range(shards):
        pieces = [task("cut", _cut, key, ranges, shard) for key in keys]
        indexes.append(task("index", prefixes.SeedIndex, code, task.tree("merge", prefixes.merge_keys, pieces)))
    return indexes


def seed_sizes(executor: Executor, indexes: Sequence[Deferred]) -> list[Deferred]:
    """Graphs of the number of seeds in each index; confidential."""
    task = executor.tasks("candidates")
    return [task("sizes", attrgetter("size"), index) for index in indexes]


def candidate_batches(
    executor: Executor,
    synthesizer: SeedSynthesis,
    test: PrivacyTest,
    seeds: Sequence[Deferred],
    key: KeyRef,
    batches: Iterable[int],
    *,
    batch_size: int,
) -> list[Deferred]:
    """Graphs of the candidates that pass, a `Passed` for each batch: batch b holds candidates ``b · batch_size`` to
    ``(b + 1) · batch_size - 1``. `seeds` are one index of all seeds, or those of their ranges in order; none when every
    attribute is resampled. The synthesizer is sent once and shared by the tasks.
    """
    task = executor.tasks("candidates")
    model = task.constant("model", synthesizer)
    sizes = seed_sizes(executor, seeds) if len(seeds) > 1 else []
    result = []
    for batch in batches:
        start, stop = batch * batch_size, (batch + 1) * batch_size
        if len(seeds) <= 1:
            index = seeds[0] if seeds else None
            result.append(task("test", _make_and_test, key, model, index, test, start, stop))
            continue
        found = [task("seeds", _find_seeds, key, index, sizes, i, start, stop) for i, index in enumerate(seeds)]
        made = task("make", _make, key, model, found, start, stop)
        counts = [task("count", type(synthesizer).counts, model, index, made) for index in seeds]
        result.append(task("test", _test, key, model, made, counts, test, start))
    return result


def passed_counts(executor: Executor, batches: Sequence[Deferred], *, below: int | None = None) -> list[Deferred]:
    """Graphs of the number of passing candidates of each batch, confidential; `below` counts only candidates whose
    number is below it, for the check of the pass rate among the first ones.
    """
    task = executor.tasks("passed")
    return [task("count", _passed, batch, below) for batch in batches]


def first_passing(
    executor: Executor,
    make: Callable[[Iterable[int]], list[Deferred]],
    *,
    records: int,
    at_least: int = 0,
    at_most: int,
    batch_size: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[Deferred], list[int]]:
    """Make and test candidates from the first one on, until `records` of them pass.

    `make` gives the graphs of batches of `batch_size` candidates by their numbers (`candidate_batches`). At least
    `at_least` are tried in any case, and the search ends with about `at_most`. `progress` is called with (done, total)
    while the first batches are made: how many follow is private, and not only the operator sees progress. Returns the
    batches 0, 1, 2, ..., held where they were computed, and the passing candidates of each, confidential: they sum to
    less than `records` where too few pass.
    """
    batches: list[Deferred] = []
    counts: list[int] = []
    wanted = math.ceil(max(records, at_least) / batch_size)
    share = min(1, wanted * batch_size / at_most)

    def first(done: int, total: int) -> None:
        progress(math.floor(1000 * share * done / max(total, 1)), 1000)

    shown: Callable[[int, int], None] | None = first
    while True:
        numbers = range(len(batches), len(batches) + wanted)
        made = executor.persist(make(numbers), progress=shown)
        shown = None
        batches += made
        counts += executor.compute(passed_counts(executor, made))
        missing = records - sum(counts)
        if missing <= 0 or len(batches) * batch_size >= at_most:
            return batches, counts
        rate = max(sum(counts), 1) / len(counts)
        wanted = min(math.ceil(missing / rate), 2 * len(batches), math.ceil(at_most / batch_size) - len(batches))


def released_parts(
    executor: Executor, batches: Sequence[Deferred], counts: Sequence[int], *, records: int, rows_per_part: int
) -> list[Deferred]:
    """Graphs of the parts of the release: the first `records` candidates that pass, in order, in parts of
    `rows_per_part` rows. `counts` are the passing candidates of batches 0, 1, 2, ..., which are persisted, or they are
    computed again.
    """
    task = executor.tasks("release")
    used = np.diff(np.minimum(np.cumsum(counts), records), prepend=0).tolist()
    return [
        task("part", _assemble, [batches[b] for b, _, _ in cuts], [(begin, end) for _, begin, end in cuts])
        for cuts in slices(used, rows_per_part)
    ]


def _add_all(arrays: Sequence[Counts]) -> Counts:
    return reduce(np.add, arrays)


def _cut(keys: prefixes.SeedKeys, ranges: Sequence[tuple[int, int]], shard: int) -> prefixes.SeedKeys:
    return prefixes.keys_between(keys, *ranges[shard])


def _make_and_test(
    key: KeyRef, synthesizer: SeedSynthesis, seeds: prefixes.SeedIndex | None, test: PrivacyTest, start: int, stop: int
) -> Passed:
    return candidate_batch(load_noise(key), synthesizer, seeds, test, start, stop)


def _find_seeds(key: KeyRef, index: prefixes.SeedIndex, sizes: list[int], shard: int, start: int, stop: int) -> Codes:
    ranks = seed_ranks(load_noise(key), start, stop, seeds=sum(sizes))
    return index.prefixes(ranks, offset=sum(sizes[:shard]))


def _make(key: KeyRef, synthesizer: SeedSynthesis, found: list[Codes], start: int, stop: int) -> CandidateRecords:
    prefix = [_add_all(list(columns)) for columns in zip(*found, strict=True)]
    return synthesizer.propose(load_noise(key), prefix, start, stop)


def _test(
    key: KeyRef,
    synthesizer: SeedSynthesis,
    candidates: CandidateRecords,
    counts: list[NDArray[np.int64]],
    test: PrivacyTest,
    start: int,
) -> Passed:
    passes = test.passes(load_noise(key), synthesizer, candidates, _add_all(counts), start)
    return Passed.of(candidates, passes, start)


def _passed(batch: Passed, below: int | None) -> int:
    return len(batch) if below is None else int(np.searchsorted(batch.indices, below))


def _assemble(batches: list[Passed], spans: list[tuple[int, int]]) -> Codes:
    return spans_of([batch.codes for batch in batches], spans)
