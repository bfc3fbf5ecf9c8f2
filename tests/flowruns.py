"""What tests of the release flow share: a spec as a parameter, and acting at the moments of a flow's runs."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from clusters import parts
from outcomes import at_moments
from releases import project

from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.ledger.signing import KeyEncryptionKey
from dpdist.lifecycle import run as lifecycle
from dpdist.lifecycle.run import Run, run_release
from dpdist.storage.store import Store


def inline(spec: PlausibleDeniabilitySpec) -> dict[str, Any]:
    """A whole spec as a parameter."""
    tree: dict[str, Any] = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return tree


@contextmanager
def at_moments_of_flows(act: Callable[[str], Any]) -> Iterator[None]:
    """As `outcomes.at_moments`, for the runs that flows of this process make."""
    with at_moments(act) as progress:

        def make(spec: Any, **options: Any) -> Run:
            own = options.pop("progress")

            def both(stage: str, done: int, total: int) -> None:
                own(stage, done, total)
                progress(stage, done, total)

            return Run(spec, **options, progress=both)

        with mock.patch.object(lifecycle, "Run", make):
            yield


def shown_artifacts() -> dict[str, Any]:
    """All artifacts that Prefect holds, however many, by key: the newest of each."""
    from prefect import get_client
    from prefect.client.schemas.sorting import ArtifactSort

    found: dict[str, Any] = {}
    with get_client(sync_client=True) as client:
        for offset in count(step=200):
            page = client.read_artifacts(sort=ArtifactSort.UPDATED_DESC, offset=offset)
            for artifact in page:
                if artifact.key is not None:
                    found.setdefault(artifact.key, artifact)
            if len(page) < 200:
                return found
    raise AssertionError("unreachable")


def key_of(spec: PlausibleDeniabilitySpec, folder: Path) -> str:
    """The key of an open attempt, while it is in the work folder."""
    work = Store(spec.work)
    (name,) = [name for name in work.names() if name.endswith("/key.json")]
    record = json.loads(work.read_bytes(name))
    kek = KeyEncryptionKey.find(folder / "ledger.db.kek")
    return kek.unwrap(base64.b64decode(record["wrapped"]), attempt=record["attempt"]).hex()


def calm_parts(key: str, folder: Path) -> list[bytes]:
    """The parts of the release with this key where nothing goes wrong."""
    folder = folder / "calm"
    folder.mkdir()
    run_release(project(folder), fixed_key=key)
    return parts(folder / "release")
