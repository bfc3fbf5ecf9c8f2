"""REAEDP's experiments on histograms again, from a spec: its tables and figures.

Run ``python tests/benchmarks/bench_histogram_papers.py --data ../shared/data --json papers.json``. What is run stands
in ``histogram_papers.yaml`` beside this file, or in the file given by ``--spec``.

REAEDP adds noise for one record more or less (add/remove) while it states replacement; here the adjacency of every
number is add/remove.
"""

import csv
import gzip
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from bench_papers_acs import passing, people, release_spec
from harness import argument_parser, keep, write
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpdist.data.numbers import NumberEncoder
from dpdist.families.base.calibration import add_noise
from dpdist.families.base.network import Network
from dpdist.families.base.registry import stages_of
from dpdist.families.base.rehearsal import rehearse
from dpdist.families.deniability.deniability import SeedSynthesizer
from dpdist.families.deniability.plan import plan
from dpdist.families.histogram.entropy import renyi, shannon
from dpdist.families.histogram.measurement import Measurement, plan_measurement
from dpdist.families.histogram.postprocess import non_negative_integers, synthetic_counts
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.noise import Noise
from dpdist.privacy.sensitivity import bounds
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import Count

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
Record = dict[str, Any]

SPEC = Path(__file__).with_name("histogram_papers.yaml")
NOISE = Noise(bytes(32))
T_975 = 2.776  # the 97.5 % quantile of Student's t with 4 degrees of freedom, of five runs


def columns(spec: Record, data: Path) -> dict[str, Floats]:
    """The columns of the spec; one may begin at the row in which another column has a value."""
    found = {}
    for wanted in spec["columns"]:
        with (data / wanted["file"]).open() as file:
            rows = list(csv.DictReader(file))
        for name, value in wanted.get("first", {}).items():
            rows = rows[[row[name] for row in rows].index(value) :]
        values = [float(row[wanted["column"]]) for row in rows[: wanted.get("rows")]]
        found[wanted["name"]] = np.array(values)
    return found


def histogram(values: Floats, bins: int) -> Counts:
    """Equal bins from the smallest to the largest value, as published (so the edges are not private)."""
    ends = (float(values.min()), float(values.max()))
    encoder = NumberEncoder(Attribute(name="x", kind="number", bounds=ends, bins=Count(count=bins)))
    return np.bincount(encoder.encode(pa.array(values))[0], minlength=bins)


def measured(
    cells: int, mechanism: str, epsilon: float, delta: float = 1e-5, adjacency: str = "add/remove"
) -> Measurement:
    """The noise of one histogram."""
    delta = delta if mechanism == "gaussian" else 0.0
    return plan_measurement(
        [cells],
        mechanism=mechanism,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,  # type: ignore[arg-type]
    )


def noisy(counts: Counts, mechanism: str, epsilon: float, repeats: int, name: str, delta: float = 1e-5) -> Counts:
    """Many noisy copies, shape (repeats, cells)."""
    plan = measured(counts.size, mechanism, epsilon, delta)
    table = np.tile(counts, (repeats, 1))
    return add_noise(table, mechanism=plan.mechanism, scale=plan.scales[0], noise=NOISE, name=name)


def table_s3(spec: Record, values: dict[str, Floats]) -> list[Record]:
    """Table S3: entropies of 30 bins, original and noisy (epsilon = 1), with exact sensitivity and published bound."""
    records, wanted = [], spec["table"]
    for name, column in values.items():
        counts = histogram(column, wanted["bins"])
        both = bounds(records=counts.sum(), order=1, adjacency="replacement")
        copies = np.maximum(noisy(counts, "laplace", wanted["epsilon"], spec["repeats"], f"s3/{name}"), 0)
        entropies = [shannon(copy) for copy in copies]
        records.append(
            {
                "column": name,
                "records": int(counts.sum()),
                "entropy": shannon(counts),
                "entropy_noisy_mean": float(np.mean(entropies)),
                "entropy_noisy_deviation": float(np.std(entropies)),
                "errors_above_published_bound": float(
                    np.mean(np.abs(np.array(entropies) - shannon(counts)) > both.published_bound)
                ),
                "sensitivity": both.sensitivity,
                "published_bound": both.published_bound,
                "largest_change_in_this_table": empirical(counts, 1.0),
                "renyi": [
                    {
                        "order": order,
                        "sensitivity": (
                            b := bounds(records=counts.sum(), order=order, adjacency="replacement")
                        ).sensitivity,
                        "published_bound": b.published_bound,
                        "largest_change_in_this_table": empirical(counts, order),
                    }
                    for order in wanted["orders"]
                ],
            }
        )
    return records


def empirical(counts: Counts, order: float) -> float:
    """Largest change of an entropy when one record of this very table moves to another bin."""
    own, worst = renyi(counts, order=order), 0.0
    for start in np.flatnonzero(counts):
        for stop in range(counts.size):
            moved = counts.copy()
            moved[start] -= 1
            moved[stop] += 1
            worst = max(worst, abs(renyi(moved, order=order) - own))
    return worst


def sensitivities(spec: Record) -> list[Record]:
    """How far one moved record changes an entropy: exact sensitivity, published bound, largest change that is found.

    Searched are tables of two bins, of equal bins, and of one large bin beside bins of one record: among them are those
    that attain the exact value.
    """
    records, wanted = [], spec["sensitivity"]
    for order in wanted["orders"]:
        for size in wanted["records"]:
            both = bounds(records=size, order=order, adjacency="replacement")
            found = max(moved(table, order) for table in shapes(size))
            records.append(
                {
                    "order": order,
                    "records": size,
                    "sensitivity": both.sensitivity,
                    "published_bound": both.published_bound,
                    "largest_change_found": found,
                }
            )
    return records


def shapes(people: int) -> Iterator[Counts]:
    """Tables of this many records, with an empty bin."""
    for large in np.unique(np.geomspace(1, people, 200).astype(int)).tolist():
        yield np.array([large, people - large, 0])
        yield np.concatenate([[large], np.ones(people - large, int), [0]])
    for bins in (2, 3, 5, 10):
        yield np.concatenate([np.full(bins, people // bins), [people % bins, 0]])


def moved(counts: Counts, order: float) -> float:
    """Largest change of an entropy when a record leaves the first bin or a bin of the least records for another."""
    own, worst = renyi(counts, order=order), 0.0
    filled = np.flatnonzero(counts)
    for start in {int(filled[0]), int(filled[-1]), int(filled[np.argmin(counts[filled])])}:
        for stop in {0, 1, counts.size - 1} - {start}:
            other = counts.copy()
            other[start] -= 1
            other[stop] += 1
            worst = max(worst, abs(renyi(other, order=order) - own))
    return worst


def cut(counts: Counts, mechanism: str, *settings: Any) -> list[Counts]:
    """Noisy counts, cut at zero."""
    return [np.maximum(copy, 0) for copy in noisy(counts, mechanism, *settings)]


def fitted(counts: Counts, mechanism: str, *settings: Any) -> list[Counts]:
    """Nearest non-negative integers to noisy counts."""
    return [non_negative_integers(copy) for copy in noisy(counts, mechanism, *settings)]


def synthetic(counts: Counts, mechanism: str, epsilon: float, repeats: int, name: str, delta: float) -> list[Counts]:
    """REAEDP's synthetic baselines: as many records as there were, drawn from noisy counts cut at zero."""
    copies = cut(counts, mechanism, epsilon, repeats, name, delta)
    return [
        synthetic_counts(copy, records=int(counts.sum()), noise=NOISE, name=f"{name}/draw/{i}")
        for i, copy in enumerate(copies)
    ]


BASELINES: dict[str, tuple[Callable[..., list[Counts]], str]] = {
    "laplace": (cut, "laplace"),
    "gaussian": (cut, "gaussian"),
    "laplace, fitted": (fitted, "laplace"),
    "synthetic from laplace": (synthetic, "laplace"),
    "synthetic from gaussian": (synthetic, "gaussian"),
}


def variation(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Total variation distance of two histograms as distributions."""
    return 0.5 * float(np.abs(a / max(a.sum(), 1) - b / b.sum()).sum())


def errors(spec: Record, values: dict[str, Floats]) -> list[Record]:
    """Error against epsilon (30 bins) and against the number of bins (epsilon = 1)."""
    records, wanted, table = [], spec["errors"], spec["table"]
    settings = dict.fromkeys(
        [(table["bins"], e) for e in wanted["epsilons"]] + [(bins, table["epsilon"]) for bins in wanted["bins"]]
    )
    for name, column in values.items():
        for bins, epsilon in settings:
            counts = histogram(column, bins)
            for baseline, (function, mechanism) in BASELINES.items():
                label = f"errors/{name}/{bins}/{epsilon}/{baseline}"
                copies = function(counts, mechanism, epsilon, spec["repeats"], label, spec["delta"])
                records.append(
                    {
                        "column": name,
                        "bins": bins,
                        "epsilon": epsilon,
                        "baseline": baseline,
                        "total_variation": float(np.mean([variation(copy, counts) for copy in copies])),
                        "mean_absolute_error": float(np.mean([np.abs(copy - counts).mean() for copy in copies])),
                        "entropy_error": float(
                            np.mean([abs(shannon(copy) - shannon(counts)) if copy.any() else 0.0 for copy in copies])
                        ),
                    }
                )
    return records


def attacks(spec: Record, values: dict[str, Floats]) -> list[list[str]]:
    """Figure 7: a logistic regression on (entropy, total) tells releases of two tables apart, or the nearer in L2 of
    two reference releases does. The tables differ by one record in the smallest bin.
    """
    wanted, rows = spec["attacks"], []
    count, runs = wanted["releases"], wanted["runs"]
    for column, numbers in values.items():
        counts = histogram(numbers, wanted["bins"])
        other = counts.copy()
        other[np.argmin(counts)] += 1
        for epsilon in wanted["epsilons"]:
            found: dict[str, list[float]] = {"accuracy": [], "AUC": [], "linkage": []}
            for run in range(runs):
                name = f"attacks/{column}/{epsilon}/{run}"
                made = [
                    noisy(t, "laplace", epsilon, 2 * count + 1, f"{name}/{i}") for i, t in enumerate((counts, other))
                ]
                seen = [np.array([(shannon(np.maximum(c, 0)), c.sum()) for c in copies[1:]]) for copies in made]
                x, labels = np.concatenate(seen), np.repeat([0, 1], 2 * count)
                train = np.tile(np.repeat([True, False], count), 2)
                model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x[train], labels[train])
                score = model.predict_proba(x[~train])[:, 1]
                found["accuracy"].append(float(((score > 0.5) == labels[~train]).mean()))
                found["AUC"].append(float(roc_auc_score(labels[~train], score)))
                far = [[np.linalg.norm(copies[1:] - made[i][0], axis=1) for i in (0, 1)] for copies in made]
                found["linkage"].append(float(np.mean([far[0][0] < far[0][1], far[1][1] < far[1][0]])))
            row = [column, f"{epsilon:g}"]
            for scores in found.values():
                half = T_975 * np.std(scores, ddof=1) / math.sqrt(runs)
                row.append(f"{np.mean(scores):.3f} ± {half:.3f}")
            rows.append([*row, f"{1 / (1 + math.exp(-epsilon)):.3f}"])
    return rows


def images(spec: Record, data: Path) -> list[list[str]]:
    """The supplement's images: noise on every pixel of 64 x 64 (an epsilon for each), PSNR in dB and mean error."""
    content = gzip.decompress((data / "mnist_t10k_images.idx3.gz").read_bytes())
    digits = np.pad(np.frombuffer(content, np.uint8, offset=16).reshape(-1, 28, 28)[:4], ((0, 0), (2, 2), (2, 2)))
    image, rows = digits.astype(np.int64).reshape(2, 2, 32, 32).transpose(0, 2, 1, 3).reshape(64, 64), []
    for epsilon in spec["images"]["epsilons"]:
        row = [f"{epsilon:g}"]
        for mechanism in ("laplace", "gaussian"):
            unit, scores = measured(1, mechanism, epsilon, spec["delta"]), []
            for i in range(spec["images"]["repeats"]):
                name = f"image/{mechanism}/{epsilon}/{i}"
                copy = add_noise(image, mechanism=unit.mechanism, scale=255 * unit.scales[0], noise=NOISE, name=name)
                difference = (image - np.clip(copy, 0, 255)).astype(np.float64)
                scores.append((10 * math.log10(255**2 / float(np.mean(difference**2))), np.abs(difference).mean()))
            row += [f"{value:.1f}" for value in np.mean(scores, axis=0)]
        rows.append(row)
    return rows


T, PUBLISHED_EPSILON0 = 2, 0.1
"""Of REAEDP's Figure 1: t of the theorem on deniability, and what its published code has for epsilon0."""


def passing_rates(spec: Record) -> list[list[str]]:
    """Figure 1: candidates that pass against gamma, on ACS 2013 with 5 to 11 of eleven attributes resampled.

    Beside it the curve of the paper's code, which draws from a formula and tests no record, and epsilon and delta of a
    record by Theorem 1 of Bindschaedler et al. at the paper's t.
    """
    wanted = spec["passing"]
    train, _, _ = people(None, 0)
    made = plan(release_spec(len(train[0]), 1, **{"synthesis.omega": [11]}))
    key = KeyRef.fixed(bytes(32).hex())
    network = rehearse(made, stages_of(made), train, key=key, until=Network).result(Network)
    synthesizer, seeds = SeedSynthesizer(network, (5, 6, 7, 8, 9, 10, 11)), [c[-wanted["seeds"] :] for c in train]
    rows = []
    for gamma in wanted["gamma"]:
        rates = passing(synthesizer, seeds, NOISE, wanted["candidates"], gamma=gamma, ks=wanted["k"])
        drawn = [100 * (1 - math.exp(-PUBLISHED_EPSILON0 * (k - T)) / (1 + gamma)) for k in wanted["k"]]
        pairs = zip(rates, drawn, strict=True)
        row = [f"{gamma:g}", *(f"{100 * rate:.1f} ({published:.1f})" for rate, published in pairs)]
        rows.append([*row, f"{1 + math.log1p(gamma / T):.3f}"])
    return [*rows, ["δ at t = 2", *(f"{math.exp(T - k):.1e}" for k in wanted["k"]), ""]]


def keep_figures(spec: Record, values: dict[str, Floats], data: Path) -> None:
    """Write the figures that are tables of ``results/histogram.json``."""
    about = {
        "title": "REAEDP's images: Laplace and Gaussian noise",
        "note": "64 × 64 pixels of four MNIST digits, ε for each pixel, δ = 10⁻⁵. The paper says that both behave "
        "alike; at these ε they do not.",
    }
    heads = ["ε", *(f"{name}: {what}" for name in ("Laplace", "Gaussian") for what in ("PSNR, dB", "mean error"))]
    keep("histogram", "images", about, heads, images(spec, data))
    about = {
        "title": "Figure 7 of REAEDP: attacks on two neighbouring tables",
        "note": f"30 bins, Laplace, 95 % intervals over {spec['attacks']['runs']} runs; *most*: the best accuracy that "
        "ε allows.",
    }
    heads = ["column", "ε", "membership: accuracy", "AUC", "linkage: accuracy", "most"]
    keep("histogram", "attacks", about, heads, attacks(spec, values))
    about = {
        "title": "Figures 5 and 6 of REAEDP: entropy errors",
        "note": f"Mean error of the entropy in bits, {spec['repeats']} repetitions, add/remove, δ = 10⁻⁵ for Gaussian "
        "noise.",
    }
    found = errors(spec, values)
    rows = [
        [name, str(bins), f"{epsilon:g}"]
        + [
            f"{r['entropy_error']:.3g}"
            for r in found
            if (r["column"], r["bins"], r["epsilon"]) == (name, bins, epsilon) and r["baseline"] != "laplace, fitted"
        ]
        for name, bins, epsilon in dict.fromkeys((r["column"], r["bins"], r["epsilon"]) for r in found)
    ]
    heads = ["column", "bins", "ε", "Laplace", "Gaussian", "synthetic from Laplace", "synthetic from Gaussian"]
    keep("histogram", "entropy_errors", about, heads, rows)
    about = {
        "title": "Figure 1 of REAEDP: candidates that pass",
        "note": "Per cent, ACS 2013, 10,000 seeds, 5 to 11 of eleven attributes resampled, ε₀ = 1. In brackets the "
        "paper's curve: its code tests no record and draws from 1 − e^(−ε₀(k − t))/(1 + γ), t = 2, ε₀ = 0.1. ε, δ: a "
        "record by Theorem 1 of Bindschaedler et al.; t changes what it costs and not which records pass.",
    }
    heads = ["γ", *(f"k = {k}" for k in spec["passing"]["k"]), "ε at t = 2"]
    keep("histogram", "passing", about, heads, passing_rates(spec))


def main() -> None:
    """Print Table S3 and the claims of the figures; with ``--json``, write all of it."""
    parser = argument_parser(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--spec", type=Path, default=SPEC, help="what to run")
    arguments = parser.parse_args()
    spec = yaml.safe_load(arguments.spec.read_text())
    values = columns(spec, arguments.data)
    keep_figures(spec, values, arguments.data)
    results = {"table_s3": table_s3(spec, values), "errors": errors(spec, values), "sensitivity": sensitivities(spec)}
    for r in results["table_s3"]:
        print(
            f"{r['column']:<10} n {r['records']}  H {r['entropy']:.4f}  noisy {r['entropy_noisy_mean']:.4f}  "
            f"sensitivity {r['sensitivity']:.6f}  published {r['published_bound']:.6f}  "
            f"found {r['largest_change_in_this_table']:.6f}  errors above {r['errors_above_published_bound']:.2f}"
        )
    for order in spec["sensitivity"]["orders"]:
        rows = [r for r in results["sensitivity"] if r["order"] == order]
        reached = [r["largest_change_found"] / r["sensitivity"] for r in rows]
        published = [r["largest_change_found"] / r["published_bound"] for r in rows]
        print(
            f"order {order:g}: largest change found is {min(reached):.4f} to {max(reached):.4f} of the exact one, "
            f"{min(published):.3g} to {max(published):.3g} of the published bound"
        )
    write(arguments, results)


if __name__ == "__main__":
    main()
