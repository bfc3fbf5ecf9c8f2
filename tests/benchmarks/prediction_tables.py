"""Five public tables: disclosure, linkage, and what synthetic records add to public ones."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from harness import DATA, ROOT
from prediction_models import FILES, Nothing, Rows, Synthesis, key
from scipy.spatial import KDTree

from dpdist.data.inputs import table_source
from dpdist.data.operators import gather_operator
from dpdist.data.table import open_table
from dpdist.families.base.graph import run_pass
from dpdist.families.prediction.columns import columns_of
from dpdist.families.prediction.lid.regression import Features
from dpdist.families.prediction.plan import plan_lid
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.families.prediction.stages import SyntheticInputs
from dpdist.privacy.arrays import Floats
from dpdist.spec.reader import load


class Task:
    """A public table with its spec, split into private, public and test rows."""

    def __init__(self, name: str, seed: int) -> None:
        path = ROOT / "deploy" / "releases" / f"{name}.yaml"
        self.name, self.spec = (name, load(path, {"data.path": str(DATA / FILES[name]), "data.minimum_records": 100}))
        table = open_table(table_source(self.spec), self.spec.table, partitions=1)
        codes, _ = run_pass(table, gather_operator())
        self.columns = columns_of(self.spec)
        order = np.random.default_rng(seed).permutation(len(codes[0]))
        cuts = np.split(order, [round(0.7 * len(order)), round(0.8 * len(order))])
        self.private, self.public, self.test = ([column[cut] for column in codes] for cut in cuts)
        inputs, _ = self.columns.units(self.private)
        self.features = Features(self.columns.scales, np.maximum(inputs.std(axis=0), 1e-9))

    def seen(self, codes: list[Any]) -> Rows:
        """What models see of some records."""
        return self.features.of(self.columns.units(codes))

    def changed(self, **settings: Any) -> TwoStageSpec:
        """The spec with other settings of `prediction`, and any disclosure allowed."""
        tree = self.spec.model_dump(mode="json", by_alias=True)
        tree["privacy"]["disclosure"]["lid"] = 1.0
        tree["prediction"] |= settings
        return TwoStageSpec.model_validate(tree)


def linked(original: Floats, released: Floats) -> float:
    """Share of the released rows whose nearest original row (all inputs) is the one they were mixed from."""
    _, nearest = KDTree(original).query(released)
    return float(np.mean(nearest == np.arange(len(released))))


def linkage(trials: int, names: Sequence[str] = tuple(FILES)) -> dict[str, Any]:
    """How often a released row is nearest to the row it was mixed from, at the disclosure of the spec and beside it."""
    out: dict[str, Any] = {}
    for name in names:
        rows: dict[str, dict[str, list[float]]] = {}
        for trial in range(trials if name != "california" else 1):
            task = Task(name, trial)
            original = task.seen(task.private)[0]
            made = Synthesis(plan_lid(task.spec), task.private, key(trial), until=SyntheticInputs)
            settings = {"as released": (task.spec.prediction.matching, made.alpha)}
            for matching in ("nearest", "independent"):
                settings |= {f"{matching}, alpha {a:g}": (matching, a) for a in (0.0, 0.2, 0.5, 0.8)}
            for label, (matching, alpha) in settings.items():
                other = plan_lid(task.changed(matching=matching, alpha=alpha))
                made = Synthesis(other, task.private, key(trial), until=SyntheticInputs)
                row = rows.setdefault(label, {})
                row.setdefault("alpha", []).append(made.alpha)
                row.setdefault("lid", []).append(made.lid)
                row.setdefault("linked", []).append(linked(original, task.features(made.rows(model=Nothing())[0])))
        print(name, file=sys.stderr, flush=True)
        out[name] = {"records": len(original)} | {
            label: {what: float(np.mean(values)) for what, values in row.items()} for label, row in rows.items()
        }
    return out
