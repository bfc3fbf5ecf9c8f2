"""Quality of the model: average total variation distance of all two-way marginals to the input.

    python tests/benchmarks/bench_quality.py --json bench/quality.json [--tables acs2024] [--seeds 5] [--epsilon 1]

For each table of `deploy/releases`: the learned model by each score, the same model without noise, and independent
marginals; every attribute is resampled (omega = m), so no record is a seed and each goes to the structure or to the
parameters. As many records are generated as the input has: `sampling_floor` is the distance of an equally large
sample drawn from the input itself. Keys and splits are seeded, **not private**, so that runs can be repeated.
"""

import argparse
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
from harness import DATA, ROOT, Clock, argument_parser, write

from dpdist.data.count import PairCounts, pair_counts
from dpdist.data.inputs import table_source
from dpdist.data.operators import gather_operator
from dpdist.data.table import open_table
from dpdist.families.base.graph import run_pass
from dpdist.families.base.network import Network
from dpdist.families.deniability.estimation import estimate_network
from dpdist.families.deniability.parameters import count_tables, exact_tables, measure_tables
from dpdist.families.deniability.plan import plan
from dpdist.families.deniability.search import entropies, pair_distances
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.families.deniability.structure import (
    StructureStatistics,
    independent_structure,
    learn_structure,
    measure_structure,
)
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.spec.reader import load

FILES = {
    "acs2013": [DATA / "acs2013_sgf_100k.csv"],
    "acs2024": [DATA / "acs2024_workers.parquet"],
    "adult": [DATA / "adult.data", DATA / "adult.test"],
}
STRUCTURE_SHARES = {"cfs": Fraction(3, 10), "total-variation": Fraction(3, 20)}
"""Share of the records that learns the structure; distances need less of them than entropies."""


def release_spec(table: str, options: argparse.Namespace, **model: Any) -> PlausibleDeniabilitySpec:
    """The table's spec with every attribute resampled and no seeds."""
    share: Fraction = options.structure_share or STRUCTURE_SHARES[model.get("score", "total-variation")]
    settings = {
        "data.path": [str(path) for path in FILES[table]],
        "privacy.model": {"epsilon": options.epsilon, "delta": options.delta},
        "split": {"structure": str(share), "parameters": str(1 - share), "seeds": 0},
        "synthesis.omega": "all",
        "model": model,
    }
    return load(ROOT / f"deploy/releases/{table}-paper.yaml", settings)


def distance(a: PairCounts, b: PairCounts) -> float:
    """Average total variation distance of all two-way marginals."""
    pairs = combinations(range(len(a.cardinalities)), 2)
    return float(np.mean([np.abs(a.pair(i, j) / a.total - b.pair(i, j) / b.total).sum() / 2 for i, j in pairs]))


def generate(network: Network, noise: Noise, records: int) -> Codes:
    """Records drawn along the order of the network."""
    codes: Codes = [np.zeros(records, np.uint8)] * len(network)
    for i in network.order:
        words = noise.words(f"candidates/value/{i}", records)
        codes[i] = network.draw(i, network.configuration(i, codes), words)
    return codes


def learn(spec: PlausibleDeniabilitySpec, codes: Codes, noise: Noise, seed: int, *, noisy: bool) -> Network:
    """The release's own steps on records in memory; the noise is left out where asked, its limits are not."""
    schema, model = spec.table, plan(spec).model
    in_structure = np.random.default_rng(seed).random(len(codes[0])) < float(spec.split.structure)
    records = spec.data.minimum_records * float(spec.split.parameters)
    structure = independent_structure(schema)
    if model.structure is not None:
        counts = pair_counts([column[in_structure] for column in codes], schema.cardinalities)
        statistics = measure_structure(counts, schema, plan=model.structure, noise=noise)
        if not noisy:
            exact = pair_distances if statistics.score == "total-variation" else entropies
            statistics = StructureStatistics(score=statistics.score, values=tuple(exact(counts, schema)))
        structure = learn_structure(
            statistics,
            schema,
            records=records,
            table_noise=model.parameters.standard_deviation,
            regressed=spec.regressed,
        )
    maps = [attribute.bucket_map for attribute in schema.attributes]
    counts = count_tables([column[~in_structure] for column in codes], structure=structure, bucket_maps=maps)
    tables = measure_tables(counts, structure, plan=model.parameters, noise=noise)
    if not noisy:
        tables = exact_tables(counts, structure)
    return estimate_network(tables, structure, schema, noise=noise)


def measure(table: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row per model, averaged over the seeds."""
    spec = release_spec(table, options)
    codes, _ = run_pass(open_table(table_source(spec), spec.table), gather_operator())
    records = len(codes[0])
    truth = pair_counts(codes, spec.table.cardinalities)
    drawn = np.random.default_rng(0).integers(0, records, records)
    floor = distance(pair_counts([column[drawn] for column in codes], spec.table.cardinalities), truth)
    models: list[tuple[str, dict[str, Any], bool]] = [("independent", {"structure": "independent"}, True)]
    models += [(f"{score}, no noise", {"score": score}, False) for score in STRUCTURE_SHARES]
    models += [(score, {"score": score}, True) for score in STRUCTURE_SHARES]
    for name, settings, noisy in models:
        chosen = release_spec(table, options, **settings)
        distances, seconds = [], []
        for seed in range(options.seeds):
            noise = Noise(np.random.default_rng([seed, 1]).bytes(32))
            start = Clock()
            network = learn(chosen, codes, noise, seed, noisy=noisy)
            seconds.append(start.seconds)
            made = pair_counts(generate(network, noise, records), spec.table.cardinalities)
            distances.append(distance(made, truth))
        yield {
            "table": table,
            "records": records,
            "attributes": len(codes),
            "model": name,
            "structure_share": float(chosen.split.structure),
            "epsilon": options.epsilon if noisy else None,
            "delta": options.delta if noisy else None,
            "distance": round(float(np.mean(distances)), 4),
            "deviation": round(float(np.std(distances)), 4),
            "sampling_floor": round(floor, 4),
            "seconds": round(float(np.mean(seconds)), 2),
        }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--tables", nargs="*", choices=list(FILES), default=list(FILES))
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-9)
    parser.add_argument("--structure-share", type=Fraction, help="share of the records for the structure")
    parser.add_argument("--seeds", type=int, default=3, help="repetitions, each with its own key and split")
    options = parser.parse_args()
    rows = []
    for table in options.tables:
        for row in measure(table, options):
            rows.append(row)
            shown = f"{row['distance']:.4f} ± {row['deviation']:.4f}  {row['seconds']} s"
            print(f"{table:8} {row['model']:32} {shown}", flush=True)
    write(options, rows)


if __name__ == "__main__":
    main()
