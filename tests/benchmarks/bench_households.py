"""Statistics within households of released, real and loose persons, and margins of both tables (ACS 2024).

Usage: python tests/benchmarks/bench_households.py --epsilon 1 4 [--keys 5] [--alone]
"""

import tempfile
from contextlib import closing
from itertools import combinations
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import yaml
from harness import DATA, Clock, argument_parser, write

from dpdist.ledger import Books
from dpdist.lifecycle.conformity import check_input
from dpdist.lifecycle.run import run_release
from dpdist.publish.verify import read_release, verify
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec

SPEC = Path(__file__).resolve().parents[2] / "deploy" / "releases" / "acs2024-households.yaml"
PERSON = ["AGEP", "SEX", "RAC1P", "CIT", "MAR", "SCHL", "ESR", "DIS", "HICOV"]
HOUSEHOLD = ["TEN", "BLD", "HHT", "HHL", "BDSP", "HINCP"]


def main() -> None:
    """Release at each epsilon, and print both tables."""
    options = argument_parser(__doc__)
    options.add_argument("--data", type=Path, default=DATA, help="folder of the two files")
    options.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 4.0])
    options.add_argument("--at-most", type=int, default=6)
    options.add_argument("--keys", type=int, default=1, help="linked releases at each epsilon, whose means are printed")
    options.add_argument("--alone", action="store_true", help="leave out releases of persons and households apart")
    asked = options.parse_args()
    real = persons(asked.data, asked.at_most)
    households = np.random.default_rng(1).permutation(real.household.unique())
    half = real.household.isin(set(households[::2].tolist()))
    within = {"real": statistics(real), "half": statistics(real[half]), "loose": statistics(loose(real))}
    margins = {"half": distances(real[half], real[~half])}
    for epsilon in asked.epsilon:
        name = f"epsilon {epsilon:g}"
        found = []
        for _ in range(asked.keys):
            with tempfile.TemporaryDirectory() as folder:
                made = release(asked.data, Path(folder), epsilon, asked.at_most)
            found.append((statistics(made), distances(made, real)))
        within[name], margins[name] = (pd.DataFrame(list(of)).mean().to_dict() for of in zip(*found, strict=True))
        if asked.alone:
            continue
        with tempfile.TemporaryDirectory() as folder:
            margins[f"apart {epsilon:g}"] = separate(asked.data, Path(folder), epsilon, real)
        with tempfile.TemporaryDirectory() as folder:
            alone = flat(Path(folder), epsilon, real)
        within[f"flat {epsilon:g}"], margins[f"flat {epsilon:g}"] = (
            of_references(alone),
            distances(alone, real, tops=True),
        )
    print(pd.DataFrame(within).to_string(float_format="{:.4f}".format))
    print(pd.DataFrame(margins).to_string(float_format="{:.4f}".format))
    write(asked, {"within": within, "distances": margins})


def persons(data: Path, at_most: int) -> pd.DataFrame:
    """The persons that are used, with their households' attributes and their places."""
    found = pq.read_table(data / "acs2024_persons.parquet", columns=["household", "SPORDER", *PERSON]).to_pandas()
    above = pq.read_table(data / "acs2024_households.parquet", columns=["household", *HOUSEHOLD]).to_pandas()
    joined = found.merge(above, on="household").sort_values(["household", "SPORDER"])
    joined["place"] = joined.groupby("household").cumcount() + 1
    return joined[joined.place <= at_most].astype(dict.fromkeys(PERSON, "float64"))


def loose(real: pd.DataFrame) -> pd.DataFrame:
    """Persons drawn without households: the same ones, each in a household at random."""
    shuffled, order = real.copy(), np.random.default_rng(0).permutation(len(real))
    shuffled[PERSON] = real[PERSON].to_numpy()[order]
    return shuffled


def release(data: Path, folder: Path, epsilon: float, at_most: int) -> pd.DataFrame:
    """A release of the shipped spec under a contract, read back; prints what it broke and took."""
    settings = {"privacy.epsilon": epsilon, "unit.at_most": at_most, "output.path": str(folder / "release")}
    settings |= {"ledger": f"sqlite:///{folder}/ledger.db", "work": str(folder / "work")}
    settings |= {"data.path": str((data / "acs2024_persons.parquet").absolute())}
    settings |= {"data.parent.path": str((data / "acs2024_households.parquet").absolute())}
    spec = load(SPEC, settings)
    declare(spec)
    start = Clock()
    run_release(spec)
    seconds, memory = start.cpu, getrusage(RUSAGE_SELF).ru_maxrss / 2**20
    assert verify(folder / "release").private
    made = read_release(folder / "release").to_pandas().rename(columns={"SPORDER": "place"})
    took = f"{seconds:.0f} CPU s, at most {memory:.2f} GiB"
    print(f"epsilon {epsilon:g}: {took}, {len(made):,} persons; {broken(made)} break a rule", flush=True)
    return made.astype({"household": "int64", **dict.fromkeys(PERSON, "float64")})


def separate(data: Path, folder: Path, epsilon: float, real: pd.DataFrame) -> dict[str, float]:
    """Distances of two releases that are not linked, each of the whole epsilon: of persons, and of households."""
    found = {}
    tables = {"persons": (PERSON, real, {"unit": {"by": "household", "at_most": int(real.place.max())}})}
    tables |= {"households": (HOUSEHOLD, real[real.place == 1], {})}
    schema = load(SPEC).table
    for name, (own, table, unit) in tables.items():
        attributes = [a.model_dump(mode="json", exclude_defaults=True) for a in schema.attributes if a.name in own]
        made = synthesis(folder, name, data / f"acs2024_{name}.parquet", attributes, len(table), epsilon, unit)
        made = made.assign(place=1).astype(dict.fromkeys(own, "float64"))
        found |= distances(made, table[[*own, "place"]])
    return found


def flat(folder: Path, epsilon: float, real: pd.DataFrame) -> pd.DataFrame:
    """A release of the reference persons alone, with their households' attributes and numbers of persons."""
    own = [*HOUSEHOLD, *PERSON]
    table = real[real.place == 1].assign(persons=real.groupby("household").place.transform("max"))
    schema = load(SPEC).table
    attributes = [a.model_dump(mode="json", exclude_defaults=True) for a in schema.attributes if a.name in own]
    attributes.append({"name": "persons", "kind": "integer", "bounds": [1, int(real.place.max())]})
    table[[*own, "persons"]].astype("Int64").to_parquet(folder / "flat.parquet", index=False)
    made = synthesis(folder, "flat", folder / "flat.parquet", attributes, len(table), epsilon, {})
    return made.assign(place=1, household=np.arange(len(made))).astype(dict.fromkeys(own, "float64"))


def synthesis(
    folder: Path, name: str, path: Path, attributes: list[dict], records: int, epsilon: float, unit: dict
) -> pd.DataFrame:
    """A default synthesis of one table, read back."""
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({"attributes": attributes}))
    tree = {"kind": "synthesis", "name": name, "dataset": name, "schema": f"{name}.yaml"}
    tree |= {"data": {"path": str(path.absolute()), "extra_columns": "ignore", "minimum_records": 95 * records // 100}}
    tree |= {"output": {"path": name}, "work": "work", "ledger": f"sqlite:///{folder}/{name}.db"}
    tree |= {"privacy": {"epsilon": epsilon, "delta": 1e-9}, "synthesis": {"records": records}} | unit
    spec = load(tree, base=folder)
    declare(spec)
    run_release(spec)
    return read_release(folder / name).to_pandas()


def declare(spec: ReleaseSpec) -> None:
    """A ledger with a contract that the files keep."""
    tree = {"schema": spec.table, "unit": spec.unit or "record", "minimum_records": spec.data.minimum_records}
    tree |= {"data": spec.data.model_dump(exclude={"minimum_records"}), "epsilon": 30, "delta": "1e-6"}
    contract = Contract.model_validate(tree)
    found = check_input(contract)
    assert not found.problems, found.problems
    with closing(Books.open(spec.ledger)) as ledger:
        ledger.create_from_contract(spec.dataset, contract)
        ledger.admit_input(spec.dataset, fingerprint=found.fingerprint, contract=contract.digest)


def broken(made: pd.DataFrame) -> int:
    """Persons that break one of the shipped rules, read off the released values, and households that differ inside."""
    young = made.AGEP < 16
    found = (young != made.ESR.isna()) | ((made.AGEP < 3) != made.SCHL.isna()) | ((made.AGEP < 15) & (made.MAR != 5))
    found |= (made.AGEP < 15) & made.HHT.isin([4, 6])
    differ = (made.groupby("household")[HOUSEHOLD].nunique() > 1).any(axis=1)
    return int(found.sum()) + int(differ.sum())


def of_references(table: pd.DataFrame) -> dict[str, float]:
    """The statistics that a table of the reference persons has, by its number of persons in the household."""
    alone = table.HHT.isin([4, 6])
    return {
        "mean size": float(table.persons.mean()),
        "one person": float((table.persons == 1).mean()),
        "five persons and more": float((table.persons >= 5).mean()),
        "living alone, with others": float((table.persons > 1)[alone].mean()),
    }


def statistics(table: pd.DataFrame) -> dict[str, float]:
    """What households are like inside."""
    by = table.sort_values(["household", "place"]).set_index("household")
    first, second = by[by.place == 1], by[by.place == 2]
    size, child = by.groupby(level=0).size(), by.AGEP < 18
    with_second = first.loc[second.index]
    couple = (with_second.HHT == 1) & (with_second.MAR == 1) & (second.MAR == 1)
    gap = (with_second.AGEP - second.AGEP).abs()[couple]
    own = by[child & (by.place > 1)]
    older = first.AGEP.loc[own.index].to_numpy() - own.AGEP.to_numpy()
    later = by[by.place > 2]
    before = by.groupby(level=0).RAC1P.shift(1)[by.place > 2]
    edges = [1, 4, 12, 16, 18, 20, 21, 22, 25]
    schooling = [pd.cut(column, edges, right=False, labels=False) for column in (with_second.SCHL, second.SCHL)]
    known = couple & schooling[0].notna() & schooling[1].notna()
    married = with_second.HHT == 1
    return {
        "mean size": float(size.mean()),
        "one person": float((size == 1).mean()),
        "five persons and more": float((size >= 5).mean()),
        "with a child": float(child.groupby(level=0).any().mean()),
        "married couple: second person married": float((second.MAR == 1)[married].mean()),
        "married couple: of both sexes": float((second.SEX != with_second.SEX)[married].mean()),
        "couples: mean age gap": float(gap.mean()),
        "couples: age gap above 10": float((gap > 10).mean()),
        "couples: one race": float((with_second.RAC1P == second.RAC1P)[couple].mean()),
        "couples: one class of schooling": float((schooling[0] == schooling[1])[known].mean()),
        "first and second: one race": float((with_second.RAC1P == second.RAC1P).mean()),
        "third and later: race of the one before": float((before == later.RAC1P).mean()),
        "children: first person 18 to 45 older": float(((older >= 18) & (older <= 45)).mean()),
        "children: years younger than the first": float(older.mean()),
        "living alone, with others": float((size[first.HHT.isin([4, 6])] > 1).mean()),
        "all insured": float((by.HICOV == 1).groupby(level=0).all().mean()),
    }


def distances(table: pd.DataFrame, other: pd.DataFrame, *, tops: bool = False) -> dict[str, float]:
    """Mean total variation distances of one- and two-way tables of persons and households, and across; of households
    only, where the table has no other persons (`tops`).
    """
    schema = load(SPEC).table
    edges = {a.name: [*a.bin_edges.tolist(), 10**9] for a in schema.attributes if a.is_binned}
    coded = []
    for one in (table, other):
        one = one.copy()
        for name, ends in edges.items():
            if name not in one:
                continue
            one[name] = pd.cut(one[name], [-(10**9), *ends[1:]], right=False, labels=False)
        coded.append(one.fillna(-1))
    firsts = [one[one.place == 1] for one in coded]
    sets = {
        "persons, one-way": (coded, [(name,) for name in PERSON]),
        "persons, two-way": (coded, list(combinations(PERSON, 2))),
        "households, one-way": (firsts, [(name,) for name in HOUSEHOLD]),
        "households, two-way": (firsts, list(combinations(HOUSEHOLD, 2))),
        "persons by households": (coded, [(a, b) for a in HOUSEHOLD for b in PERSON]),
    }
    return {
        name: _mean(pair, asked)
        for name, (pair, asked) in sets.items()
        if set(sum(asked, ())) <= set(table.columns) and (name.startswith("households") or not tops)
    }


def _mean(pair: list[pd.DataFrame], sets: list[tuple[str, ...]]) -> float:
    found = []
    for names in sets:
        a, b = (one.groupby(list(names)).size() / len(one) for one in pair)
        found.append(a.sub(b, fill_value=0).abs().sum() / 2)
    return float(np.mean(found))


if __name__ == "__main__":
    main()
