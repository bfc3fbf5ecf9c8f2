"""Candidates made and tested a second, one core, on ACS 2024: seeds are half of its 1.3 million rows.

Run ``python tests/benchmarks/bench_privacy_test.py --data ../shared/data --json privacy_test.json``.

The network has no noise: each attribute has as parents the two earlier ones that tell most about it. "test" is what
the privacy test alone does (count the seeds by prefix, buckets of exact probabilities, threshold noise, comparison);
"whole" also makes the candidates and collects those that pass. "own" is a mixture of products by `model.hook`, fitted
without noise to rows that are taken for public, whose candidates are compared with every seed.
"""

from __future__ import annotations

import json
import runpy
import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from harness import argument_parser, write

from dpdist.data.count import coarsen, configuration_index, pair_counts
from dpdist.families.base.network import Network, thresholds_from_weights
from dpdist.families.deniability.deniability import PrivacyTest, SeedSynthesizer, candidate_batch, seed_ranks
from dpdist.families.deniability.own_model import OwnSynthesizer
from dpdist.families.deniability.prefixes import SeedIndex, seed_keys
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Codes
from dpdist.privacy.deniability import SeedRecords
from dpdist.privacy.events import RandomSplit
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Schema

SCHEMA = Path(__file__).parents[2] / "deploy" / "releases" / "schemas" / "acs2024.yaml"
OMEGAS = ((9,), (9, 10, 11), (5, 6, 7, 8, 9, 10, 11), (11,))
BLOCK = 1 << 16
PUBLIC, COMPONENTS = 100_000, 8
TEST = PrivacyTest(k=50, gamma=4, epsilon0=1)


def read(schema: Schema, path: Path) -> Codes:
    """Codes of a clean table."""
    table = pq.read_table(path)
    codes = []
    for attribute in schema.attributes:
        values: Any = attribute.values or attribute.bin_edges.tolist()
        lookup = np.zeros(max(values) + 1, attribute.dtype)
        lookup[list(values)] = np.arange(len(values))
        codes.append(lookup[table[attribute.name].to_numpy()])
    return codes


def learn(schema: Schema, codes: Codes, order: Sequence[int]) -> Network:
    """The network of the given order with two parents for each attribute."""
    pairs = pair_counts(codes, schema.cardinalities)
    maps = [a.bucket_map for a in schema.attributes]
    buckets = schema.bucket_counts
    parents: dict[int, tuple[int, ...]] = {}
    for position, i in enumerate(order):
        told = {
            p: information(coarsen(pairs.pair(p, i), maps[p], buckets=buckets[p], axis=0)) for p in order[:position]
        }
        parents[i] = tuple(sorted(sorted(told, key=told.__getitem__)[-2:]))
    thresholds = []
    for i, attribute in enumerate(schema.attributes):
        sizes = [buckets[p] for p in parents[i]] or [1]
        columns = [maps[p][codes[p]] for p in parents[i]] or [np.zeros(len(codes[i]), np.uint8)]
        index = configuration_index(columns, sizes) * attribute.cardinality + codes[i]
        counts = np.bincount(index, minlength=int(np.prod(sizes)) * attribute.cardinality)
        counts = counts.reshape(-1, attribute.cardinality)
        thresholds.append(thresholds_from_weights(10 * counts + 1))
    links = tuple(parents[i] for i in range(len(order)))
    return Network(schema.cardinalities, tuple(maps), buckets, links, tuple(order), tuple(thresholds))


def information(counts: np.ndarray) -> float:
    """Mutual information of the two axes of a table, in nats."""
    joint = counts / counts.sum()
    product = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    some = joint > 0
    return float((joint[some] * np.log(joint[some] / product[some])).sum())


def measure(network: Network, seeds: Codes, omegas: tuple[int, ...], count: int) -> dict[str, Any]:
    """Rates for one set of omegas."""
    noise, synthesizer = Noise(bytes(32)), SeedSynthesizer(network, omegas)
    record: dict[str, Any] = {"omega": list(omegas), "candidates": count, "seeds": len(seeds[0])}
    index = None
    if synthesizer.uses_seeds:
        begin = time.perf_counter()
        index = SeedIndex(synthesizer.prefix_code, seed_keys(synthesizer.prefix_code, seeds))
        record["index_seconds"] = time.perf_counter() - begin
    candidate_batch(noise, synthesizer, index, TEST, 0, BLOCK)  # builds the tables of the threshold noise
    begin = time.perf_counter()
    passed = candidate_batch(noise, synthesizer, index, TEST, 0, count)
    record["whole_per_second"] = count / (time.perf_counter() - begin)
    record["pass_rate"] = len(passed) / count
    if index is None:
        return record
    seconds = 0.0
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        prefix = index.prefixes(seed_ranks(noise, start, stop, seeds=index.size))
        candidates = synthesizer.propose(noise, prefix, start, stop)
        begin = time.perf_counter()
        TEST.passes(noise, synthesizer, candidates, index.counts(candidates.codes), start)
        seconds += time.perf_counter() - begin
    record["test_per_second"] = count / seconds
    return record


def own(schema: Schema, codes: Codes, seeds: int, count: int) -> dict[str, Any]:
    """A mixture of products: rates, distance of its records to the table, and the charge of 10,000 of them."""
    rows = np.random.default_rng(0).permutation(len(codes[0]))
    public, chosen = ([column[part] for column in codes] for part in (rows[:PUBLIC], rows[PUBLIC:][:seeds]))
    record: dict[str, Any] = {"seeds": seeds, "candidates": count, "components": COMPONENTS}
    begin = time.process_time()
    guide = runpy.run_path(str(Path(__file__).parents[1] / "mixture.py"))
    fitted = guide["fit"](public, schema.cardinalities, components=COMPONENTS, rounds=50)
    model = guide["MixtureOfProducts"](*fitted)
    record["fit_seconds"] = time.process_time() - begin
    for gamma in (2, 4):
        test, synthesizer = PrivacyTest(k=500, gamma=gamma, epsilon0=0.05), OwnSynthesizer(model, schema, gamma)
        index = SeedIndex(synthesizer.prefix_code, seed_keys(synthesizer.prefix_code, chosen))
        begin = time.process_time()
        passed = candidate_batch(Noise(bytes(32)), synthesizer, index, test, 0, count)
        record[f"gamma {gamma}"] = made = {"per_cpu_second": count / (time.process_time() - begin)}
        made["pass_rate"] = len(passed) / count
        made["one_way"], made["two_way"] = distances(passed.codes, codes, schema)
        release = SeedRecords(
            k=test.k, gamma=gamma, epsilon0=0.05, passing_mass=0.9 * seeds * made["pass_rate"], records=10_000
        )
        share = seeds / len(codes[0])
        made["epsilon"] = accountant.epsilon(RandomSplit(((share, release), (1 - share, None))), delta=1e-9)
    some = [column[rows[:count]] for column in codes]
    record["sample_one_way"], record["sample_two_way"] = distances(some, codes, schema)
    return record


def distances(made: Codes, codes: Codes, schema: Schema) -> tuple[float, float]:
    """Mean total variation of the one-way and two-way tables of two tables."""
    found, real = (pair_counts(one, schema.cardinalities) for one in (made, codes))
    pairs = list(combinations(range(len(codes)), 2))
    two = [np.abs(found.pair(i, j) / len(made[0]) - real.pair(i, j) / len(codes[0])).sum() / 2 for i, j in pairs]
    one = [
        np.abs(np.bincount(a, minlength=n) / len(a) - np.bincount(b, minlength=n) / len(b)).sum() / 2
        for a, b, n in zip(made, codes, schema.cardinalities, strict=True)
    ]
    return float(np.mean(one)), float(np.mean(two))


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds acs2024_workers.parquet")
    parser.add_argument("--count", type=int, default=1 << 20)
    parser.add_argument("--own", action="store_true", help="only the mixture")
    args = parser.parse_args()
    schema = Schema.from_yaml(SCHEMA)
    codes = read(schema, args.data / "acs2024_workers.parquet")
    seeds = [column[::2] for column in codes]
    ascending = sorted(range(len(codes)), key=schema.cardinalities.__getitem__)
    results = []
    orders = (("small domains first", ascending), ("large domains first", ascending[::-1]))
    for order_name, order in () if args.own else orders:
        network = learn(schema, codes, order)
        for omegas in OMEGAS:
            record = {"order": order_name, **measure(network, seeds, omegas, args.count)}
            results.append(record)
            tested = f"{record['test_per_second'] / 1e6:5.1f}" if "test_per_second" in record else "none"
            print(
                f"{order_name}, omega in {record['omega']}: pass rate {record['pass_rate']:.3f}, "
                f"test {tested} M/s, whole {record['whole_per_second'] / 1e6:.1f} M/s"
            )
    mixtures = [own(schema, codes, count, 10_000) for count in (50_000, 200_000)]
    print(json.dumps(mixtures, indent=2))
    write(args, {"own": mixtures, "results": results})


if __name__ == "__main__":
    main()
