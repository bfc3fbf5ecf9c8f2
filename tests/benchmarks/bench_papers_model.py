"""Figures 1 to 4 and 6 of plausible deniability's paper (Bindschaedler, Shokri, Gunter 2017) on the ACS 2013 sample.

    python tests/benchmarks/bench_papers_model.py --json bench/papers_model.json

*Figures 1 and 2*: the share of test records whose most likely value of an attribute, given all others, is not the true
one: by the model without noise, at epsilon 1 and 0.1, by private marginals, a random guess and a random forest.
*Figures 3 and 4*: total variation distances of all attributes and of all pairs, as quartiles, of each release to real
records. *Figure 6*: candidates that pass the test with gamma 2. *Unique*: records that occur once. The paper learned
from 560,000 records, here there are 80,000. Keys and splits are seeded, **not private**.
"""

import json
import sys
from typing import Any

import numpy as np
from bench_papers_acs import KS, PASSING, passing, people, release_spec, releases
from bench_quality import learn
from harness import argument_parser, write
from sklearn.ensemble import RandomForestClassifier

from dpdist.data.count import pair_counts
from dpdist.data.operators import split_labels
from dpdist.families.base.network import Network
from dpdist.families.base.registry import stages_of
from dpdist.families.base.rehearsal import rehearse
from dpdist.families.deniability.deniability import SeedSynthesizer
from dpdist.families.deniability.plan import plan
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Schema


def most_likely(network: Network, codes: Codes, attribute: int) -> np.ndarray:
    """The most likely value of an attribute given all others, by the network."""
    count, children = (
        network.cardinalities[attribute],
        [i for i in range(len(network)) if attribute in network.parents[i]],
    )
    scores: Floats = np.empty((count, len(codes[0])))
    configuration = network.configuration(attribute, codes)
    for value in range(count):
        changed = list(codes)
        changed[attribute] = np.full(len(codes[0]), value, codes[attribute].dtype)
        scores[value] = network.log_probability(attribute, configuration, changed[attribute])
        for child in children:
            scores[value] += network.log_probability(child, network.configuration(child, changed), codes[child])
    return np.asarray(scores.argmax(axis=0))


def key_of(seed: int) -> KeyRef:
    """The key of a model."""
    return KeyRef.fixed(np.random.default_rng([seed, 5]).bytes(32).hex())


def model(train: Codes, seed: int, *, epsilon: float, noisy: bool = True, structure: str | None = None) -> Network:
    """A model of the release's own stages, or of the same steps without noise."""
    settings: dict[str, Any] = {"privacy.model.epsilon": epsilon}
    if structure is not None:
        settings |= {"model.structure": structure, "synthesis.omega": "all"}
    spec = release_spec(len(train[0]), 1000, **settings)
    if not noisy:
        return learn(spec, train, Noise(np.random.default_rng([seed, 4]).bytes(32)), seed, noisy=False)
    made = plan(spec)
    return rehearse(made, stages_of(made), train, key=key_of(seed), until=Network).result(Network)


def forest_errors(train: Codes, test: Codes, rows: int = 20_000) -> list[float]:
    """Errors of random forests that predict each attribute from the others."""
    x, seen = (np.column_stack(part)[:rows] for part in (train, test))
    out = []
    for place in range(x.shape[1]):
        forest = RandomForestClassifier(20, min_samples_leaf=5, random_state=0)
        forest.fit(np.delete(x, place, 1), x[:, place])
        out.append(float((forest.predict(np.delete(seen, place, 1)) != seen[:, place]).mean()))
    return out


def accuracy(train: Codes, test: Codes, schema: Schema, runs: int) -> dict[str, Any]:
    """Errors of the models for each attribute (Figures 1 and 2)."""

    def of(made: Network) -> list[float]:
        return [float((most_likely(made, test, i) != test[i]).mean()) for i in range(len(test))]

    def mean(**settings: Any) -> list[float]:
        return np.mean([of(model(train, seed, **settings)) for seed in range(runs)], axis=0).tolist()

    out = {
        "random guess": [1 - 1 / size for size in schema.cardinalities],
        "private marginals": mean(epsilon=1, structure="independent"),
        "random forest": forest_errors(train, test),
        "model, no noise": of(model(train, 0, epsilon=1, noisy=False)),
        "model, epsilon 1": mean(epsilon=1),
        "model, epsilon 0.1": mean(epsilon=0.1),
    }
    base = np.array(out["private marginals"])
    improved = {name: float(np.mean(1 - np.array(row) / base)) for name, row in out.items()}
    return {"attributes": list(schema.names), "runs": runs, "errors": out, "relative_improvement": improved}


def spread(values: list[float]) -> dict[str, float]:
    """What a box plot shows."""
    names = ("least", "lower quartile", "median", "upper quartile", "largest")
    return dict(zip(names, np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist(), strict=True))


def distances(train: Codes, records: int, schema: Schema, seed: int) -> dict[str, Any]:
    """Total variation of attributes and pairs of each release (Figures 3 and 4)."""
    sizes, half = schema.cardinalities, [column[: len(train[0]) // 2] for column in train]
    real, out = pair_counts(half, sizes), {}
    for name, codes in releases(train, records, seed):
        made = pair_counts(codes, sizes)
        single = [_tv(real.single(i), made.single(i)) for i in range(len(sizes))]
        pairs = [_tv(real.pair(i, j), made.pair(i, j)) for i in range(len(sizes)) for j in range(i)]
        out[name] = {"attributes": spread(single), "pairs": spread(pairs)}
        print(name, file=sys.stderr, flush=True)
    return out


def _tv(a: Any, b: Any) -> float:
    return float(np.abs(a / a.sum() - b / b.sum()).sum() / 2)


def pass_rates(train: Codes, candidates: int, gammas: tuple[float, ...] = (2.0, 4.0)) -> dict[str, Any]:
    """Share of candidates that pass with each gamma (Figure 6 has gamma 2)."""
    network = model(train, 3, epsilon=1)
    noise = load_noise(key_of(3))  # of the model: its split decides who is a seed
    shares = release_spec(len(train[0]), 1).split.shares
    labels = split_labels(noise, file=0, row_start=0, count=len(train[0]), shares=shares)
    seeds = [column[labels == 2] for column in train]
    return {"seeds": len(seeds[0]), "k": list(KS)} | {
        f"gamma {gamma:g}": {
            name: passing(SeedSynthesizer(network, tuple(omegas)), seeds, noise, candidates, gamma=gamma)
            for name, omegas in PASSING.items()
        }
        for gamma in gammas
    }


def unique(codes: Codes) -> float:
    """Share of the records that occur once."""
    _, counts = np.unique(np.column_stack(codes), axis=0, return_counts=True)
    return float((counts == 1).sum() / len(codes[0]))


def main() -> None:
    """Print and, with ``--json``, write all figures."""
    parser = argument_parser(__doc__)
    parser.add_argument("--rows", type=int, help="records of the table, for a quick look")
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument("--candidates", type=int, default=30_000)
    parser.add_argument("--runs", type=int, default=5, help="noisy models (the paper has 20)")
    options = parser.parse_args()
    train, test, schema = people(options.rows, 0)
    both = [np.concatenate(pair) for pair in zip(train, test, strict=True)]
    report = {
        "rows": len(train[0]),
        "unique": {str(n): unique([column[:n] for column in both]) for n in (1_000, 10_000, len(both[0]))},
        "accuracy": accuracy(train, test, schema, options.runs),
        "pass_rates": pass_rates(train, options.candidates),
        "distances": distances(train, options.records, schema, 0),
    }
    print(json.dumps(report, indent=2))
    write(options, report)


if __name__ == "__main__":
    main()
