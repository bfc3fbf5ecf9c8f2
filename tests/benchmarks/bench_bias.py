"""The privacy test's bias on rare records: what passes against what was proposed, by how frequent its seed is.

Run ``python tests/benchmarks/bench_bias.py --data ../shared/data --json bias.json``.

Seeds are a fifth of ACS 2024 and each candidate keeps the first m - omega attributes, small domains first, of
its seed; the network has no noise. Candidates are sorted by how many seeds share the kept values, from the rarest to
the most frequent, and cut into ten parts of equal size: "kept" is the share of each part that passes, over the share
of all candidates that passes. 1 is no bias; 0 means that such records are never released.
"""

from pathlib import Path
from typing import Any

import numpy as np
from harness import argument_parser, write

from dpdist.data.count import pair_counts
from dpdist.families.base.network import Network
from dpdist.families.deniability.deniability import PrivacyTest, SeedSynthesizer, seed_ranks
from dpdist.families.deniability.estimation import estimate_network
from dpdist.families.deniability.expectations import Reference
from dpdist.families.deniability.parameters import count_tables, exact_tables
from dpdist.families.deniability.prefixes import SeedIndex, seed_keys
from dpdist.families.deniability.search import pair_distances
from dpdist.families.deniability.structure import StructureStatistics, learn_structure
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Schema

SCHEMA = Path(__file__).parents[2] / "deploy" / "releases" / "schemas" / "acs2024.yaml"
OMEGAS = ((7,), (6,), (5,), (4,), (3,), (4, 5, 6))
TESTS = ((50, 0.5), (50, 1.0), (200, 0.125), (2000, 0.02))
PART = 10


def learn(schema: Schema, codes: Codes, order: tuple[int, ...]) -> Network:
    """The network that counts without noise support, in a declared order."""
    distances = pair_distances(pair_counts(codes, schema.cardinalities), schema)
    structure = learn_structure(
        StructureStatistics(score="total-variation", values=tuple(distances.tolist())),
        schema,
        records=len(codes[0]),
        table_noise=1.0,
        order=tuple(schema.names[i] for i in order),
    )
    maps = [attribute.bucket_map for attribute in schema.attributes]
    tables = exact_tables(count_tables(codes, structure=structure, bucket_maps=maps), structure)
    return estimate_network(tables, structure, schema, noise=Noise(bytes(32)))


def two_way(released: Codes, proposed: Codes, sizes: tuple[int, ...]) -> float:
    """Mean total variation distance of the two-way marginals of two tables."""
    first, second = (pair_counts(codes, sizes) for codes in (released, proposed))
    distances = []
    for i in range(len(sizes)):
        for j in range(i + 1, len(sizes)):
            a, b = first.pair(i, j) / len(released[0]), second.pair(i, j) / len(proposed[0])
            distances.append(0.5 * float(np.abs(a - b).sum()))
    return float(np.mean(distances))


def measure(network: Network, seeds: Codes, omegas: tuple[int, ...], k: int, epsilon0: float, count: int) -> Any:
    """Bias for one set of omegas and one test."""
    noise, synthesizer = Noise(bytes(32)), SeedSynthesizer(network, omegas)
    index = SeedIndex(synthesizer.prefix_code, seed_keys(synthesizer.prefix_code, seeds))
    candidates = synthesizer.propose(noise, index.prefixes(seed_ranks(noise, 0, count, seeds=index.size)), 0, count)
    counts = index.counts(candidates.codes)
    test = PrivacyTest(k=k, gamma=4, epsilon0=epsilon0)
    passes = test.passes(noise, synthesizer, candidates, counts, 0)
    order = np.argsort(counts[0], kind="stable")  # by seeds that share the values every candidate keeps
    parts = [float(passes[part].mean() / max(passes.mean(), 1e-12)) for part in np.array_split(order, PART)]
    rows = np.flatnonzero(passes)
    released = [column[rows] for column in candidates.codes]
    return {
        "omega": list(omegas),
        "k": k,
        "epsilon0": epsilon0,
        "pass_rate": float(passes.mean()),
        "kept_by_decile": parts,
        "two_way_distance": two_way(released, candidates.codes, network.cardinalities),
    }


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds acs2024_workers.parquet")
    parser.add_argument("--count", type=int, default=1 << 19)
    args = parser.parse_args()
    schema = Schema.from_yaml(SCHEMA)
    codes = Reference.table(args.data / "acs2024_workers.parquet", schema).codes or []
    seeds = [column[::5] for column in codes]
    network = learn(schema, codes, Reference.zipf(schema).order)
    results = []
    for omegas in OMEGAS:
        for k, epsilon0 in TESTS:
            record = measure(network, seeds, omegas, k, epsilon0, args.count)
            results.append(record)
            parts = " ".join(f"{part:.2f}" for part in record["kept_by_decile"])
            print(
                f"omega {record['omega']}, k {k}, epsilon0 {epsilon0:g}: pass rate {record['pass_rate']:.3f}, two-way "
                f"{record['two_way_distance']:.4f}; by decile {parts}"
            )
    write(args, results)


if __name__ == "__main__":
    main()
