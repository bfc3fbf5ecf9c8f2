"""Tables of counts against regressions (`model.regression`) as conditionals of ordered attributes.

    python tests/benchmarks/bench_regression.py --json bench/regression.json [--tables adult] [--keys 3] [--rows 10000]

For each table of `deploy/releases`, at each epsilon: the network with tables alone, and with regressions of its ordered
attributes (`ORDERED`); every attribute is resampled, the structure has 15 % of the records, and as many records are
generated as the table has. Without an epsilon neither has noise; their structure is that at epsilon 4. Printed are mean
total variation distances (of all pairs, of the ordered attributes, of the pairs with one of them), and the mean over
these pairs of how far the mean code given the other attribute is off, in standard deviations.

*Pass rate* is that of the privacy test as in the paper (k 50, gamma 4, epsilon0 1, all but two, all but one or all
attributes resampled), three tenths of the records being seeds. It and all figures are of the true table: keys and
splits are seeded, **not private**, so that runs can be repeated.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from bench_quality import FILES, distance, generate, learn, release_spec
from harness import argument_parser, write

from dpdist.data.count import PairCounts, pair_counts
from dpdist.data.inputs import table_source
from dpdist.data.operators import gather_operator
from dpdist.data.table import open_table
from dpdist.families.base.graph import run_pass
from dpdist.families.base.network import Network
from dpdist.families.deniability.deniability import PrivacyTest, SeedSynthesizer, candidate_batch
from dpdist.families.deniability.prefixes import SeedIndex, seed_keys
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.spec.validation import change

ORDERED = {
    "acs2013": ("age", "edu", "hpw"),
    "acs2024": ("age", "edu", "hpw"),
    "adult": ("age", "fnlwgt", "education-num", "hours-per-week"),
}
NO_NOISE = 4.0  # epsilon of the structure's limits where there is no noise
CANDIDATES, SEEDS = 1 << 16, 0.3


def ordered_distances(made: PairCounts, truth: PairCounts, ordered: Sequence[int]) -> tuple[float, float]:
    """Mean total variation distance of the ordered attributes, and of the pairs with one of them."""
    m, a, b = len(truth.cardinalities), made.total, truth.total
    single = [np.abs(made.single(i) / a - truth.single(i) / b).sum() / 2 for i in ordered]
    pairs = {(min(i, j), max(i, j)) for i in ordered for j in range(m) if i != j}
    return float(np.mean(single)), float(
        np.mean([np.abs(made.pair(*p) / a - truth.pair(*p) / b).sum() / 2 for p in pairs])
    )


def means_off(made: PairCounts, truth: PairCounts, ordered: Sequence[int]) -> float:
    """How far the mean code of an ordered attribute given another is off, in deviations of the attribute."""
    off = []
    for i in ordered:
        values = np.arange(truth.cardinalities[i])
        share = truth.single(i) / truth.total
        mean = float(share @ values)
        deviation = float(share @ (values - mean) ** 2) ** 0.5
        for j in range(len(truth.cardinalities)):
            if j == i:
                continue
            found, true = (_means(counts.pair(j, i), mean) for counts in (made, truth))
            off.append(float(np.abs(found - true) @ truth.single(j)) / truth.total / deviation)
    return float(np.mean(off))


def _means(table: Counts, otherwise: float) -> Floats:
    """The mean code of each row of counts; something else where a row is empty."""
    rows = table.sum(axis=1)
    found: Floats = np.where(rows > 0, table @ np.arange(table.shape[1]) / np.maximum(rows, 1), otherwise)
    return found


def pass_rate(network: Network, codes: Codes, noise: Noise) -> float:
    """Share of the first candidates that pass the paper's test."""
    m = len(network)
    made = SeedSynthesizer(network, (m - 2, m - 1, m))
    chosen = np.random.default_rng(2).random(len(codes[0])) < SEEDS
    seeds = SeedIndex(made.prefix_code, seed_keys(made.prefix_code, [column[chosen] for column in codes]))
    test = PrivacyTest(k=50, gamma=4, epsilon0=1)
    return len(candidate_batch(noise, made, seeds, test, 0, CANDIDATES)) / CANDIDATES


def read(table: str, options: argparse.Namespace) -> tuple[PlausibleDeniabilitySpec, Codes]:
    """The spec of a table and its records, or some of them."""
    options.epsilon = NO_NOISE
    spec = release_spec(table, options)
    codes, _ = run_pass(open_table(table_source(spec), spec.table), gather_operator())
    if options.rows:
        chosen = np.random.default_rng(3).choice(len(codes[0]), options.rows, replace=False)
        codes = [column[chosen] for column in codes]
    return spec, codes


def measure(table: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row for each epsilon and conditional, averaged over the keys."""
    spec, codes = read(table, options)
    least = min(spec.data.minimum_records, len(codes[0]) * 9 // 10)
    truth = pair_counts(codes, spec.table.cardinalities)
    ordered = [spec.table.names.index(name) for name in ORDERED[table]]
    for epsilon in [*options.epsilons, None]:
        options.epsilon = epsilon or NO_NOISE
        for name, regression in (("tables", ()), ("regression", ORDERED[table])):
            chosen = change(release_spec(table, options, regression=regression), {"data.minimum_records": least})
            found, parents, start = [], [], time.perf_counter()
            for key in range(options.keys):
                noise = Noise(np.random.default_rng([key, 1]).bytes(32))
                network = learn(chosen, codes, noise, key, noisy=epsilon is not None)
                made = pair_counts(generate(network, noise, len(codes[0])), spec.table.cardinalities)
                one, two = ordered_distances(made, truth, ordered)
                off = means_off(made, truth, ordered)
                found.append([distance(made, truth), one, two, off, pass_rate(network, codes, noise)])
                parents.append(np.mean([len(network.parents[i]) for i in ordered]))
            columns = ("two_way", "ordered_one_way", "ordered_two_way", "means_off", "pass_rate")
            yield {
                "table": table,
                "records": len(codes[0]),
                "ordered": ORDERED[table],
                "epsilon": epsilon,
                "conditionals": name,
                "parents": round(float(np.mean(parents)), 1),
                **dict(zip(columns, np.mean(found, axis=0).round(4).tolist(), strict=True)),
                "deviation": dict(zip(columns, np.std(found, axis=0).round(4).tolist(), strict=True)),
                "seconds": round((time.perf_counter() - start) / options.keys, 2),
            }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--tables", nargs="*", choices=list(FILES), default=list(FILES))
    parser.add_argument("--epsilons", nargs="*", type=float, default=[0.1, 0.3, 1.0, 4.0])
    parser.add_argument("--rows", type=int, help="this many records of each table, at random; default: all")
    parser.add_argument("--delta", type=float, default=1e-9)
    parser.add_argument("--structure-share", type=Fraction, default=None, help="share of the records for the structure")
    parser.add_argument("--keys", type=int, default=3, help="repetitions, each with its own key and split")
    options = parser.parse_args()
    rows = []
    for table in options.tables:
        for row in measure(table, options):
            rows.append(row)
            print({name: value for name, value in row.items() if name not in ("ordered", "deviation")}, flush=True)
    write(options, rows)


if __name__ == "__main__":
    main()
