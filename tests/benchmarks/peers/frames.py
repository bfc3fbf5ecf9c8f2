"""A table in, a synthetic one out, by SDV or OpenDP in an environment of their own.

    pip install sdv 'opendp[mbi,polars]'

    python frames.py METHOD in.parquet out.parquet --epsilon 1 --delta 1e-9 --records N --cuts '{"age": [10, 20]}'

Each function is what a user writes: its lines are counted. It needs nothing of dpdist.
"""

import argparse
import inspect
import json
import time
from typing import Any

import pandas as pd


def sdv(frame: pd.DataFrame, asked: argparse.Namespace) -> pd.DataFrame:
    from sdv.metadata import Metadata
    from sdv.single_table import GaussianCopulaSynthesizer

    made = GaussianCopulaSynthesizer(Metadata.detect_from_dataframes({"table": frame}))
    made.fit({"table": frame})
    return made.sample(asked.records)["table"]


def opendp(frame: pd.DataFrame, asked: argparse.Namespace) -> pd.DataFrame:
    import opendp.prelude as dp
    import polars as pl
    from opendp.extras.mbi import _aim, _mst, _table

    for module in (_aim, _mst, _table):  # with many columns its shares sum to more than the whole, by rounding
        module.prior = lambda share: share * (1 - 1e-12)
    dp.enable_features("contrib")
    half = asked.delta / 2  # for values of texts; the other half for the conversion of rho, which has far less noise
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)

    def gaussian(scale: float) -> Any:
        return dp.m.make_gaussian(*space, scale=scale)

    def epsilon(scale: float) -> float:
        return dp.c.make_zCDP_to_approxDP(gaussian(scale)).map(1.0).epsilon(half)

    scale = dp.binary_search(lambda scale: epsilon(scale) <= asked.epsilon, bounds=(0.1, 1e4))
    loss = dp.loss_of(rho=gaussian(scale).map(1.0), delta=half)
    context = dp.Context.compositor(
        data=pl.from_pandas(frame).lazy(),
        privacy_unit=dp.unit_of(contributions=1),
        privacy_loss=loss,
        split_evenly_over=1,
    )
    table = context.query().contingency_table(cuts=json.loads(asked.cuts), algorithm=getattr(dp.mbi, asked.model)())
    return table.release().synthesize(rows=asked.records).to_pandas()


def main() -> None:
    """Read, run, write; say the seconds and the lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("method")
    parser.add_argument("input")
    parser.add_argument("output")
    for name, kind in {"epsilon": float, "delta": float, "records": int, "cuts": str}.items():
        parser.add_argument(f"--{name}", type=kind)
    asked = parser.parse_args()
    name, _, asked.model = asked.method.partition("-")
    method: Any = {"sdv": sdv, "opendp": opendp}[name]
    frame, start = pd.read_parquet(asked.input), time.perf_counter()
    made = method(frame, asked)
    seconds = time.perf_counter() - start
    made.to_parquet(asked.output)
    lines = [line for line in inspect.getsource(method).splitlines()[1:] if line.strip()]
    print(json.dumps({"seconds": round(seconds, 1), "lines": len(lines)}))


if __name__ == "__main__":
    main()
