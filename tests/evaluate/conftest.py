"""A release of a made-up table, a hold-out of the same kind, and the folder they are in."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from releases import project, table

from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.ledger import keys
from dpdist.lifecycle.run import run_release


@dataclass(frozen=True)
class Made:
    """Where everything is."""

    folder: Path
    spec: PlausibleDeniabilitySpec

    @property
    def release(self) -> str:
        return self.spec.output.path

    @property
    def table(self) -> str:
        return str(self.spec.data.path)

    @property
    def holdout(self) -> str:
        return str(self.folder / "holdout.parquet")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A release with a key-encryption key of its own beside the ledger."""
    folder = tmp_path_factory.mktemp("evaluation")
    spec = project(folder)
    pq.write_table(table(8_000, seed=1), folder / "holdout.parquet")
    run_release(spec)
    keys.forget_keys()
    return Made(folder, spec)
