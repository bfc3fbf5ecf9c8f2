"""Empirical lower bounds on epsilon beside the stated ones, for each mechanism of each family and for whole releases.

Run ``python tests/benchmarks/bench_audit.py --json audit.json``; ``--runs`` sets the releases of each table,
``--only`` the families. Whole releases are a tenth as many: each simulates 2^18 records to fit its network.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
from deniability_claims import release_claim, tables_canaries
from harness import Clock, argument_parser, spec_without_places, write

from dpdist.families.base.registry import make_plan
from dpdist.families.deniability.claims import alike, even_network, records_claim, structure_claim, tables_claim
from dpdist.families.deniability.deniability import PrivacyTest, SeedSynthesizer
from dpdist.families.deniability.parameters import parameter_plan
from dpdist.families.deniability.plan import plan
from dpdist.families.deniability.structure import Score, independent_structure, structure_plan
from dpdist.families.histogram.claims import canaries as histogram_canaries
from dpdist.families.histogram.claims import claims as histogram_claims
from dpdist.families.histogram.plan import HistogramPlan
from dpdist.families.mixing.claims import mixtures_claim
from dpdist.privacy.arrays import joined
from dpdist.privacy.mixtures import ClassMixtures
from dpdist.privacy.testing import Claim, Finding, audit, audit_in_one_run, table_of
from dpdist.spec.schema import Schema

KEY = bytes(range(32))
SIZES = (2, 3, 3)
STRUCTURES: tuple[tuple[Score, float, float], ...] = (("cfs", 2, 1e-6), ("cfs", 2, 0.05), ("total-variation", 2, 1e-6))
TABLES = (((3,), 1, 1e-9), ((3, 3), 2, 1e-9), ((2, 3, 3, 4, 5), 1, 1e-9), ((2, 3, 3, 4, 5), 1, 0.05))
CELLS = (((1 << 14,), 1), ((1 << 14, 1 << 14), 1), ((1 << 14,), 4))
SEEDS = ((3, 1.0, 1, 0.05), (4, 2.0, 1, 0.05), (6, 1.0, 5, 0.05), (6, 1.0, 10, 0.2), (60, 0.25, 20, 0.05))


def schema(*cardinalities: int) -> Schema:
    """Categorical attributes of the given numbers of values."""
    attributes = [
        {"name": f"a{i}", "kind": "categorical", "values": list(range(size))} for i, size in enumerate(cardinalities)
    ]
    return Schema.model_validate({"attributes": attributes})


def whole_release(records: int, split: dict[str, float]) -> Any:
    """A release of a table of 4,000 records and its canary."""
    spec = spec_without_places(
        "plausible-deniability",
        schema(*SIZES),
        4000,
        privacy={
            "model": {"epsilon": 3, "delta": 1e-6},
            "seed_check_epsilon": 0.3,
            "checked_candidates": 4096,
            "deniability": {"k": 60, "gamma": 2, "epsilon0": 0.25},
        },
        model={"structure": "learned" if split["structure"] else "independent"},
        split=split,
        synthesis={"records": records, "omega": 2, "minimum_pass_rate": 0.2},
    )
    companions = [np.full(118, 1, np.uint8), *alike(SIZES[1:], 118)]
    return release_claim(plan(spec), joined([alike(SIZES, 4000), companions]), alike(SIZES, 1, code=1))


def synthesis(runs: int, confidence: float) -> Iterator[Callable[[], Finding]]:
    """Plausible deniability."""
    settings = {"confidence": confidence, "key": KEY}
    table = schema(*SIZES)
    for score, epsilon, delta in STRUCTURES:
        planned = structure_plan(table, minimum_records=50, epsilon=epsilon, delta=delta, score=score)
        yield lambda p=planned, d=delta: audit(structure_claim(table, p, delta=d), runs=runs, **settings)
    for sizes, epsilon, delta in TABLES:
        one, noise = schema(*sizes), parameter_plan(schema(*sizes), epsilon=epsilon, delta=delta)
        claim = tables_claim(one, independent_structure(one), noise, delta=delta)
        yield lambda c=claim: audit(c, runs=runs, **settings)
    for sizes, epsilon in CELLS:
        canaries = tables_canaries(schema(*sizes), parameter_plan(schema(*sizes), epsilon=epsilon, delta=0), delta=0)
        yield lambda c=canaries: audit_in_one_run(c, runs=5, **settings)
    for k, epsilon0, records, delta in SEEDS:
        test = PrivacyTest(k=k, gamma=2, epsilon0=epsilon0)
        claim = records_claim(SeedSynthesizer(even_network(schema(3, 4)), (1,)), test, records=records, delta=delta)
        yield lambda c=claim: audit(c, runs=runs, **settings)
    for shares in ((0.2, 0.4, 0.4), (0, 0.5, 0.5)):
        split = dict(zip(("structure", "parameters", "seeds"), shares, strict=True))
        claim = whole_release(2, split)
        yield lambda c=claim: audit(c, runs=max(runs // 10, 1000), **settings)


HISTOGRAMS: tuple[dict[str, Any], ...] = (
    {"privacy": {"epsilon": 1}},
    {"privacy": {"epsilon": 1, "adjacency": "replacement"}},
    {"privacy": {"epsilon": 1, "delta": 0.05, "mechanism": "gaussian"}, "histograms": 2},
    {"privacy": {"epsilon": 1, "mechanism": "pml", "alpha": 0.1, "adjacency": "replacement"}},
    {"privacy": {"epsilon": 2, "delta": 1e-6}, "entropies": {"orders": [1], "share": "3/4", "mechanism": "laplace"}},
    {"privacy": {"epsilon": 1, "delta": 0.05}, "curves": {"columns": ["t0", "t1"], "penalty": 0.01, "clip": 1.0}},
    {
        "privacy": {"epsilon": 1, "delta": 0.05, "adjacency": "replacement"},
        "curves": {"columns": ["t0", "t1"], "penalty": 0.01, "clip": 1.0},
    },
)
MIXTURES = ((8, 4, 1, 0.5, 0.01), (5, 4, 3, 1.0, 0.05), (128, 64, 1, 0.0264, 0.01))


def histogram_plan(largest: int = 5, **changes: Any) -> HistogramPlan:
    """A histogram release of small tables."""
    attributes = [
        {"name": "a", "kind": "integer", "bounds": [0, 1]},
        {"name": "b", "kind": "integer", "bounds": [0, largest]},
        *({"name": name, "kind": "number", "bounds": [-1, 1]} for name in ("t0", "t1")),
    ]
    queries = [{"columns": [name]} for name in ("b", "a")][: changes.pop("histograms", 1)]
    sections = changes if "curves" in changes else {"histograms": queries} | changes
    made = make_plan(spec_without_places("histogram", {"attributes": attributes}, 5000, **sections))
    assert isinstance(made, HistogramPlan)
    return made


def histogram(runs: int, confidence: float) -> Iterator[Callable[[], Finding]]:
    """Counts, entropies and curves."""
    settings = {"confidence": confidence, "key": KEY}
    for changes in HISTOGRAMS:
        found: tuple[Claim, ...] = histogram_claims(histogram_plan(**changes))
        for claim in found[-1:]:  # the counts beside entropies are those of the first line
            yield lambda c=claim: audit(c, runs=runs, **settings)
    (canaries,) = histogram_canaries(histogram_plan(4095, privacy={"epsilon": 1}))
    yield lambda: audit_in_one_run(canaries, runs=10, **settings)


def mixing(runs: int, confidence: float) -> Iterator[Callable[[], Finding]]:
    """Mixtures of small classes; the last with the order and the noise of the paper's Adult release."""
    for minimum, order, records, sigma, delta in MIXTURES:
        mixtures = ClassMixtures(minimum=minimum, order=order, records=records)
        claim = mixtures_claim(mixtures, sigma, delta=delta)
        yield lambda c=claim: audit(c, runs=runs, confidence=confidence, key=KEY)


FAMILIES = {"plausible-deniability": synthesis, "histogram": histogram, "mixing": mixing}


def main() -> None:
    """Print the table; write it as JSON."""
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--confidence", type=float, default=0.999)
    parser.add_argument("--only", nargs="*", choices=list(FAMILIES), default=list(FAMILIES))
    arguments = parser.parse_args()
    findings, seconds = [], []
    chosen = [FAMILIES[name](arguments.runs, arguments.confidence) for name in arguments.only]
    for one in chain(*chosen):
        start = Clock()
        findings.append(one())
        seconds.append(round(start.seconds, 2))
        print(table_of(findings[-1:]).splitlines()[-1], flush=True)
    print("\n" + table_of(findings))
    write(arguments, [f.to_json() | {"seconds": s} for f, s in zip(findings, seconds, strict=True)])


if __name__ == "__main__":
    main()
