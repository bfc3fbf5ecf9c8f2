"""Attacks on releases of public tables: what is there is found, and what is not is not.

    python tests/benchmarks/bench_attacks.py --json bench/attacks.json [--tables adult] [--rows 20000]

One half of each table is released from, the other half is the hold-out. Attacked are

- *copies*: the training records themselves;
- *one value resampled*: five released records for each training record, each a copy with one value drawn again by a
  model without noise (epsilon infinite), and no privacy test (k = 1);
- *epsilon 1, all resampled*: a release at (1, 1e-9), its mechanism known to the shadow models;
- *epsilon 1, per record* (ACS 2013): the paper's release, omega in 9-11, k = 50;
- *fresh records*: a part of the hold-out, which shows what no leak looks like.

Keys and splits are seeded, **not private**.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from harness import DATA, ROOT, Clock, argument_parser, write

from dpdist.data.inputs import table_source
from dpdist.data.operators import gather_operator
from dpdist.data.table import open_table
from dpdist.evaluation.attacks import AttackTables, Generator, attack_sections
from dpdist.evaluation.attacks.membership import mechanism_of
from dpdist.evaluation.records import halves, size, take
from dpdist.families.base.graph import run_pass
from dpdist.families.base.registry import stages_of
from dpdist.families.base.rehearsal import rehearse, released_codes
from dpdist.families.deniability.deniability import SeedSynthesizer, seed_ranks
from dpdist.families.deniability.estimation import estimate_network
from dpdist.families.deniability.parameters import count_tables, exact_tables
from dpdist.families.deniability.plan import plan
from dpdist.families.deniability.prefixes import SeedIndex, seed_keys
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.families.deniability.structure import Structure
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes
from dpdist.spec.reader import load
from dpdist.spec.schema import Schema

FILES = {"acs2013": ["acs2013_sgf_100k.csv"], "adult": ["adult.data", "adult.test"]}


def spec_of(name: str, rows: int, **settings: Any) -> PlausibleDeniabilitySpec:
    """The table's spec, for this many records, releasing as many."""
    changes = {
        "data.path": [str(DATA / file) for file in FILES[name]],
        "data.minimum_records": int(0.95 * rows),
        "synthesis.records": rows,
    }
    spec = load(ROOT / f"deploy/releases/{name}.yaml", changes | settings)
    assert isinstance(spec, PlausibleDeniabilitySpec)
    return spec


def people(name: str, rows: int | None) -> tuple[Codes, Codes, Schema]:
    """Training records and hold-out."""
    spec = spec_of(name, 1000)
    columns, _ = run_pass(open_table(table_source(spec), spec.table), gather_operator())
    rng = np.random.default_rng(0)
    columns = take(columns, rng.permutation(size(columns))[:rows])
    return *halves(columns, rng), spec.table


def leaky(spec: PlausibleDeniabilitySpec, training: Codes, key: KeyRef) -> Codes:
    """Copies with one value drawn again, by a network without noise and without a privacy test."""
    structure = rehearse(plan(spec), stages_of(plan(spec)), training, key=key, until=Structure).result(Structure)
    noise = load_noise(key)
    maps = [attribute.bucket_map for attribute in spec.table.attributes]
    tables = exact_tables(count_tables(training, structure=structure, bucket_maps=maps), structure)
    network = estimate_network(tables, structure, spec.table, noise=noise)
    synthesizer = SeedSynthesizer(network, (1,))
    index = SeedIndex(synthesizer.prefix_code, seed_keys(synthesizer.prefix_code, training))
    count = 5 * size(training)
    prefix = index.prefixes(seed_ranks(noise, 0, count, seeds=index.size))
    return synthesizer.propose(noise, prefix, 0, count).codes


def releases(name: str, training: Codes, holdout: Codes) -> Iterator[tuple[str, Codes, Codes, Generator | None]]:
    """Name, released records, hold-out, and the mechanism that the adversary knows."""
    key, rows = KeyRef.fixed(np.random.default_rng(1).bytes(32).hex()), size(training)
    yield "copies", training, holdout, None
    shares = {"split": {"structure": "3/20", "parameters": "17/20", "seeds": "0"}}
    spec = spec_of(name, rows, **shares, **{"synthesis.omega": "all"})
    yield "one value resampled", leaky(spec, training, key), holdout, None
    released = released_codes(rehearse(plan(spec), stages_of(plan(spec)), training, key=key))
    yield "epsilon 1, all resampled", released, holdout, mechanism_of(spec, training=rows)
    if name == "acs2013":
        spec = spec_of(name, rows)
        released = released_codes(rehearse(plan(spec), stages_of(plan(spec)), training, key=key))
        yield "epsilon 1, per record", released, holdout, mechanism_of(spec, training=rows)
    fresh, rest = halves(holdout, np.random.default_rng(2))
    yield "fresh records", fresh, rest, None


def main() -> None:
    """Attack; print a line for each section, write JSON."""
    parser = argument_parser(__doc__)
    parser.add_argument("--tables", nargs="*", choices=list(FILES), default=list(FILES))
    parser.add_argument("--rows", type=int, help="records of each table, for a quick look")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report: list[dict[str, Any]] = []
    for name in options.tables:
        training, holdout, schema = people(name, options.rows)
        for release, released, kept, mechanism in releases(name, training, holdout):
            start = Clock()
            tables = AttackTables(released=released, training=training, holdout=kept, schema=schema, seed=options.seed)
            sections = attack_sections(tables, mechanism=mechanism)
            seconds = round(start.seconds, 1)
            print(f"\n{name}, {release} ({size(released):,} records, {seconds} s)")
            for section in sections:
                print(f"  [{section.state}] {section.title}: {section.verdict}", flush=True)
            found = {section.name: section.to_json() for section in sections}
            report.append({"table": name, "release": release, "seconds": seconds, "sections": found})
    write(options, report)


if __name__ == "__main__":
    main()
