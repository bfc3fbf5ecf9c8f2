"""Graphs of the synthesis: the bits of the pure functions for any partitions, batches, shards and parts."""

import base64
import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import cloudpickle
import dask
import numpy as np
import pytest
from dask import delayed
from dask.delayed import Delayed
from hypothesis import given
from hypothesis import strategies as st
from releases import integer_schema

from dpdist.cluster.cluster import Cluster
from dpdist.cluster.executor import Executor, InProcess
from dpdist.data.records import RecordsInMemory
from dpdist.families.base.graph import run_pass
from dpdist.families.base.network import Network
from dpdist.families.deniability.deniability import Passed, PrivacyTest, SeedSynthesizer, candidate_batch
from dpdist.families.deniability.graph import (
    candidate_batches,
    first_passing,
    passed_counts,
    released_parts,
    shard_count,
    sharded_seeds,
)
from dpdist.families.deniability.prefixes import SeedIndex, seed_keys, seed_operator
from dpdist.ledger.keys import KeyRef, load_noise, new_key, write_key_file
from dpdist.ledger.signing import KeyEncryptionKey
from dpdist.privacy.arrays import Codes

KEY = KeyRef.fixed("5a" * 32)
SIZES = (3, 2, 4, 2)
TEST = PrivacyTest(k=60, gamma=2, epsilon0=0.2)
RECORDS = 1500

DASK = Cluster()

RandomNetwork = Callable[..., Network]
RandomCodes = Callable[..., Codes]


def cut(codes: Codes, partitions: int) -> list[Codes]:
    edges = np.linspace(0, len(codes[0]), partitions + 1).astype(int)
    return [[column[a:b] for column in codes] for a, b in pairwise(edges)]


def in_memory(codes: Codes, partitions: int) -> list[Delayed]:
    return [delayed(part, name=f"table-{i}", traverse=False) for i, part in enumerate(cut(codes, partitions))]


def equal(a: Codes, b: Codes) -> bool:
    return all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


def joined(parts: Sequence[Codes]) -> Codes:
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


@pytest.fixture(scope="module")
def seeds(random_codes: RandomCodes) -> Codes:
    return random_codes(6, SIZES, 400)


@pytest.fixture(scope="module")
def synthesizer(random_network: RandomNetwork) -> SeedSynthesizer:
    return SeedSynthesizer(random_network(6, SIZES), (1, 2, 4))


@pytest.fixture(scope="module")
def expected(synthesizer: SeedSynthesizer, seeds: Codes) -> Passed:
    """What NumPy alone makes of the first 6000 candidates."""
    index = SeedIndex(synthesizer.prefix_code, seed_keys(synthesizer.prefix_code, seeds))
    passed = candidate_batch(load_noise(KEY), synthesizer, index, TEST, 0, 6000)
    assert RECORDS < len(passed) < 5900
    return passed


@pytest.mark.parametrize("executor", [DASK, InProcess()])
@pytest.mark.parametrize(("partitions", "shards"), [(1, 1), (3, 1), (16, 2), (5, 4), (20, 7)])
@pytest.mark.parametrize(("batch_size", "rows_per_part"), [(1000, 400), (3000, 1500), (271, 77)])
def test_the_release_is_that_of_numpy(
    executor: Executor,
    partitions: int,
    shards: int,
    batch_size: int,
    rows_per_part: int,
    synthesizer: SeedSynthesizer,
    seeds: Codes,
    expected: Passed,
) -> None:
    parts = in_memory(seeds, partitions) if executor is DASK else cut(seeds, partitions)
    indexes = sharded_seeds(executor, parts, synthesizer.prefix_code, shards=shards)
    most = len(expected.indices) * 3
    batches, counts = first_passing(
        executor,
        partial(candidate_batches, executor, synthesizer, TEST, indexes, KEY, batch_size=batch_size),
        records=RECORDS,
        at_least=2000,
        at_most=most,
        batch_size=batch_size,
    )
    assert len(batches) * batch_size >= 2000
    released = executor.compute(released_parts(executor, batches, counts, records=RECORDS, rows_per_part=rows_per_part))
    assert [len(part[0]) for part in released[:-1]] == [rows_per_part] * (len(released) - 1)
    assert equal(joined(released), [column[:RECORDS] for column in expected.codes])
    below = executor.compute(passed_counts(executor, batches, below=777))
    assert sum(below) == (expected.indices < 777).sum()


def test_the_search_ends_where_too_few_pass(synthesizer: SeedSynthesizer, seeds: Codes) -> None:
    never = PrivacyTest(k=10**6, gamma=2, epsilon0=None)
    indexes = sharded_seeds(DASK, in_memory(seeds, 2), synthesizer.prefix_code, shards=1)
    shown: list[tuple[int, int]] = []
    batches, counts = first_passing(
        DASK,
        partial(candidate_batches, DASK, synthesizer, never, indexes, KEY, batch_size=100),
        records=100,
        at_most=1000,
        batch_size=100,
        progress=lambda *at: shown.append(at),
    )
    assert counts == [0] * 10
    assert len(batches) == 10
    assert shown[-1] == (100, 1000)  # of the first batch alone


@pytest.mark.parametrize("partitions", [1, 3])
def test_seeds_come_from_a_pass_over_a_table(
    partitions: int, synthesizer: SeedSynthesizer, seeds: Codes, expected: Passed
) -> None:
    table = RecordsInMemory.of(integer_schema(SIZES), seeds, partitions=partitions)
    index, _ = run_pass(table, seed_operator(synthesizer.prefix_code), batch_rows=50)
    (batch,) = candidate_batches(InProcess(), synthesizer, TEST, [index], KEY, [0], batch_size=6000)
    assert equal(batch.codes, expected.codes)


def test_without_kept_attributes_every_candidate_is_released(random_network: RandomNetwork) -> None:
    synthesizer = SeedSynthesizer(random_network(6, SIZES), (4,))
    here = InProcess()
    batches = candidate_batches(here, synthesizer, TEST, [], KEY, range(3), batch_size=100)
    counts = passed_counts(here, batches)
    assert counts == [100] * 3
    proposed = synthesizer.propose(load_noise(KEY), [], 0, 250).codes
    (part,) = released_parts(here, batches, counts, records=250, rows_per_part=1000)
    assert equal(part, proposed)
    assert equal(joined(released_parts(here, batches, counts, records=250, rows_per_part=100)), proposed)


@pytest.mark.parametrize("shards", [1, 3])
def test_building_graphs_computes_nothing(
    shards: int, synthesizer: SeedSynthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("a task ran while a graph was built")

    def table() -> Codes:
        raise RuntimeError("the table was read while a graph was built")

    monkeypatch.setattr("dpdist.families.deniability.graph.load_noise", refuse)
    parts = [delayed(table)() for _ in range(10)]
    with dask.config.set(scheduler=refuse):
        indexes = sharded_seeds(DASK, parts, synthesizer.prefix_code, shards=shards)
        batches = candidate_batches(DASK, synthesizer, TEST, indexes, KEY, range(4), batch_size=1000)
        passed_counts(DASK, batches, below=100)
        released_parts(DASK, batches, [10] * 4, records=40, rows_per_part=7)


def test_tasks_have_readable_names_of_their_own(synthesizer: SeedSynthesizer, seeds: Codes) -> None:
    indexes = sharded_seeds(DASK, in_memory(seeds, 2), synthesizer.prefix_code, shards=2)
    batches = candidate_batches(DASK, synthesizer, TEST, indexes, KEY, range(2), batch_size=1000)
    tasks = [*passed_counts(DASK, batches), *released_parts(DASK, batches, [5, 5], records=9, rows_per_part=4)]
    names = {str(name) for task in tasks for name in dict(task.__dask_graph__())}
    stages = {"-".join(name.split("-")[:2]) for name in names}
    assert stages == {
        *("seeds-keys", "seeds-histogram", "seeds-sum", "seeds-ranges", "seeds-cut", "seeds-merge", "seeds-index"),
        *("candidates-model", "candidates-sizes", "candidates-seeds", "candidates-make", "candidates-count"),
        *("candidates-test", "passed-count", "release-part", "table-0", "table-1"),
    }
    again = candidate_batches(DASK, synthesizer, TEST, indexes, KEY, range(2), batch_size=1000)
    assert not {task.key for task in batches} & {task.key for task in again}


def test_the_key_is_in_no_graph(
    synthesizer: SeedSynthesizer, seeds: Codes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPDIST_KEK", base64.b64encode(os.urandom(32)).decode())
    secret = new_key()
    wrapped = KeyEncryptionKey.find().wrap(secret, attempt="a1")
    key = write_key_file(str(tmp_path / "key.json"), attempt="a1", wrapped=wrapped)
    indexes = sharded_seeds(DASK, in_memory(seeds, 2), synthesizer.prefix_code, shards=2)
    batches = candidate_batches(DASK, synthesizer, TEST, indexes, key, range(2), batch_size=500)
    sent = cloudpickle.dumps([dict(batch.__dask_graph__()) for batch in batches])
    assert secret not in sent
    assert secret.hex().encode() not in sent
    assert all(len(batch) for batch in DASK.compute(batches))


def test_the_model_is_sent_once(random_network: RandomNetwork, seeds: Codes) -> None:
    synthesizer = SeedSynthesizer(random_network(6, (30, 20, 10, 40)), (1, 2, 4))
    indexes = sharded_seeds(DASK, in_memory(seeds, 2), synthesizer.prefix_code, shards=1)
    batches = candidate_batches(DASK, synthesizer, TEST, indexes, KEY, range(30), batch_size=1000)
    graph = {name: task for batch in batches for name, task in dict(batch.__dask_graph__()).items()}
    one = len(cloudpickle.dumps(synthesizer))
    tests = [task for name, task in graph.items() if str(name).startswith("candidates-test")]
    assert len(tests) == 30
    assert max(len(cloudpickle.dumps(task)) for task in tests) < one / 2


@given(
    counts=st.lists(st.integers(0, 9), max_size=12), rows=st.integers(1, 30), share=st.floats(0, 1, exclude_min=True)
)
def test_slices_cover_the_first_records_in_order(counts: list[int], rows: int, share: float) -> None:
    records = int(sum(counts) * share)
    batches = [Passed(np.arange(count), [100 * b + np.arange(count)]) for b, count in enumerate(counts)]
    passing = [value for batch in batches for value in batch.codes[0].tolist()]
    parts = [
        part[0].tolist() for part in released_parts(InProcess(), batches, counts, records=records, rows_per_part=rows)
    ]
    assert [value for part in parts for value in part] == passing[:records]
    assert [len(part) for part in parts] == [min(rows, records - low) for low in range(0, records, rows)]


def test_shards_follow_the_memory_of_a_worker(synthesizer: SeedSynthesizer) -> None:
    code = synthesizer.prefix_code
    size = code.index_bytes(10**6)
    assert shard_count(code, records=10**6, memory=size) == 1
    assert shard_count(code, records=10**6, memory=size // 3) in (3, 4)
    assert shard_count(code, records=10**12, memory=size) == 1  # few different keys, however many records
