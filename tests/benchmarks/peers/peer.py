"""Runs one method of another package, in that package's own environment: a table of codes in, a table of codes out.

    python peer.py METHOD INPUT OUTPUT --epsilon 1 --delta 1e-9 --records N

INPUT is a file of NumPy arrays: `codes` (records, attributes) and `sizes` (values of each attribute). It needs nothing
of dpdist.
"""

import argparse
import json
import os
import sys
import tempfile
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


def frame_of(codes: np.ndarray) -> pd.DataFrame:
    """The codes as a data frame with columns c0, c1, ..."""
    return pd.DataFrame({f"c{i}": codes[:, i].astype(int) for i in range(codes.shape[1])})


def mst_smartnoise(codes: np.ndarray, sizes: list[int], epsilon: float, delta: float, records: int) -> np.ndarray:
    """MST of smartnoise-synth."""
    from snsynth.mst import MSTSynthesizer

    frame = frame_of(codes)
    made = MSTSynthesizer(epsilon=epsilon, delta=delta)
    made.fit(frame, categorical_columns=list(frame.columns), preprocessor_eps=0.0)
    return made.sample(records).to_numpy().astype(int)


def _dpmm(model: str, codes: np.ndarray, sizes: list[int], epsilon: float, delta: float, records: int) -> np.ndarray:
    from dpmm import pipelines

    frame = frame_of(codes)
    for name, size in zip(frame.columns, sizes, strict=True):
        frame[name] = pd.Categorical(frame[name], categories=range(size))
    domain = {name: {"categories": list(range(size))} for name, size in zip(frame.columns, sizes, strict=True)}
    kinds = {"aim": pipelines.AIMPipeline, "mst": pipelines.MSTPipeline, "privbayes": pipelines.PrivBayesPipeline}
    kind = kinds[model]
    made = kind(epsilon=epsilon, delta=delta, proc_epsilon=None, n_jobs=1)
    made.fit(frame, domain=domain)
    return made.generate(records).to_numpy().astype(int)


def aim(codes: np.ndarray, sizes: list[int], epsilon: float, delta: float, records: int) -> np.ndarray:
    """AIM on private-pgm, of dpmm."""
    return _dpmm("aim", codes, sizes, epsilon, delta, records)


def mst(codes: np.ndarray, sizes: list[int], epsilon: float, delta: float, records: int) -> np.ndarray:
    """MST on private-pgm, of dpmm."""
    return _dpmm("mst", codes, sizes, epsilon, delta, records)


def privbayes(codes: np.ndarray, sizes: list[int], epsilon: float, delta: float, records: int) -> np.ndarray:
    """PrivBayes with private-pgm, of dpmm."""
    return _dpmm("privbayes", codes, sizes, epsilon, delta, records)


def _pgm(codes: np.ndarray, sizes: list[int]) -> Any:
    """A data set of private-pgm, of the checkout in DPDIST_PRIVATE_PGM; then its mechanisms can be imported."""
    checkout = Path(os.environ["DPDIST_PRIVATE_PGM"])
    sys.path += [str(checkout / "src"), str(checkout / "mechanisms")]
    from mbi import Dataset, Domain

    frame = frame_of(codes)
    return Dataset(frame, Domain(list(frame.columns), sizes))


def aim_pgm(codes: np.ndarray, sizes: list[int], epsilon: float, delta: float, records: int) -> np.ndarray:
    """AIM of private-pgm, for all pairs of at most 10,000 cells, with its defaults."""
    data = _pgm(codes, sizes)
    from aim import AIM

    pairs = [pair for pair in combinations(data.domain, 2) if data.domain.size(pair) <= 10_000]
    _, made = AIM(epsilon, delta).run(data, [(pair, 1.0) for pair in pairs], num_synth_rows=records)
    return made.df.to_numpy().astype(int)


def mst_pgm(codes: np.ndarray, sizes: list[int], epsilon: float, delta: float, records: int) -> np.ndarray:
    """MST of private-pgm."""
    data = _pgm(codes, sizes)
    from mst import MST

    made = MST(data, epsilon, delta).df.to_numpy().astype(int)
    return made[np.random.default_rng().integers(0, len(made), records)] if len(made) != records else made


def privbayes_datasynthesizer(
    codes: np.ndarray, sizes: list[int], epsilon: float, delta: float, records: int
) -> np.ndarray:
    """PrivBayes of DataSynthesizer, in its correlated mode with two parents."""
    from DataSynthesizer.DataDescriber import DataDescriber
    from DataSynthesizer.DataGenerator import DataGenerator

    seed = int.from_bytes(np.random.default_rng().bytes(4), "little")  # its default seed is a constant
    with tempfile.TemporaryDirectory() as folder:
        table, described, domains, made = (Path(folder) / name for name in ("in.csv", "d.json", "dom.json", "out.csv"))
        frame = frame_of(codes)
        frame.to_csv(table, index=False)
        domains.write_text(json.dumps({f"c{i}": list(range(size)) for i, size in enumerate(sizes)}))
        describer = DataDescriber(category_threshold=max(sizes) + 1)
        names = list(frame.columns)
        describer.describe_dataset_in_correlated_attribute_mode(
            dataset_file=str(table),
            epsilon=epsilon,
            k=2,
            attribute_to_datatype=dict.fromkeys(names, "Integer"),
            attribute_to_is_categorical=dict.fromkeys(names, True),
            attribute_to_is_candidate_key=dict.fromkeys(names, False),
            categorical_attribute_domain_file=str(domains),
            seed=seed,
        )
        describer.save_dataset_description_to_file(str(described))
        generator = DataGenerator()
        generator.generate_dataset_in_correlated_attribute_mode(records, str(described), seed=seed)
        generator.save_synthetic_data(str(made))
        return pd.read_csv(made)[names].to_numpy().astype(int)


METHODS = {
    "mst-smartnoise": mst_smartnoise,
    "aim": aim,
    "mst": mst,
    "privbayes": privbayes,
    "aim-pgm": aim_pgm,
    "mst-pgm": mst_pgm,
    "privbayes-datasynthesizer": privbayes_datasynthesizer,
}


def main() -> None:
    """Read the table, run the method, write its records."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--delta", type=float, required=True)
    parser.add_argument("--records", type=int, required=True)
    options = parser.parse_args()
    table = np.load(options.input)
    method = METHODS[options.method]
    made = method(table["codes"], table["sizes"].tolist(), options.epsilon, options.delta, options.records)
    if made.shape != (options.records, len(table["sizes"])) or (made < 0).any() or (made >= table["sizes"]).any():
        raise SystemExit(f"{options.method} released records outside the domain")
    np.savez(options.output, codes=made.astype(np.uint16))


if __name__ == "__main__":
    main()
