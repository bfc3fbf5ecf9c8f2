"""OpenLineage events of a run, where `DPDIST_LINEAGE` asks for them: input, release, contract and charge.

An event holds what the spec, the ledger and the manifest say: names, addresses, the attributes of the release, the
guarantee, a digest of the contract. It holds no number that depends on a record and no text of an error. When a run
begins and ends does depend on the table, as on the Prefect server. A release never depends on whether an event arrives.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from math import isfinite
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from dpdist import __version__
from dpdist.errors import DpdistError, ResourceError, SpecError

if TYPE_CHECKING:
    from dpdist.families.base.plan import Plan
    from dpdist.lifecycle.publication import Outcome

LINEAGE: Final = "DPDIST_LINEAGE"
"""Environment variable: a file (``file:///…``) or a server (``https://…``, its key in ``OPENLINEAGE_API_KEY``) for the
events, or ``client`` for what the client's own settings name.
"""

PRODUCER: Final = f"https://dpdist.example/source/{__version__}"

_RETRIES: Final = {"total": 2, "backoff_factor": 0.3, "status_forcelist": [502, 503, 504], "allowed_methods": ["POST"]}

log = logging.getLogger("dpdist")


class Lineage:
    """The events of one run of a release; none where nobody asks. Raises SpecError: the variable names no place, or the
    client is not installed.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._client, self._run = plan, client_of(os.environ.get(LINEAGE, "")), str(uuid4())
        self._facets: dict[str, Any] = {}

    def begun(self, attempt: str, contract: str | None) -> None:
        """The attempt is charged, and the table is about to be read."""
        if self._client is None:
            return
        plan = self._plan
        price = {"epsilon": plan.epsilon, "delta": plan.delta} if isfinite(plan.epsilon) else {}
        charge = {"dataset": plan.spec.dataset, "attempt": attempt, "guarantee": plan.kind, **price}
        self._facets = {"dpdist_charge": charge}
        if contract is not None:
            self._facets["dpdist_contract"] = {"dataset": plan.spec.dataset, "sha256": contract}
        self._send("START")

    def released(self, outcome: Outcome) -> None:
        """The release is published."""
        sentences = [str(guarantee["sentence"]) for guarantee in outcome.guarantees]
        self._send("COMPLETE", {"dpdist_release": {"guarantees": sentences, "attempt": outcome.attempt}})

    def ended(self, error: BaseException) -> None:
        """The run ended early: refused (FAIL), or interrupted and to be resumed (ABORT)."""
        refused = isinstance(error, DpdistError) and not isinstance(error, ResourceError)
        self._send("FAIL" if refused else "ABORT", {"dpdist_error": {"type": type(error).__name__}})

    def _send(self, kind: str, more: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        if self._client is None or not self._facets:  # no event before the charge
            return
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import JobFacet, RunFacet, job_type_job

        facets = {
            name: RunFacet(producer=PRODUCER).with_additional_properties(**content)
            for name, content in {**self._facets, **(more or {})}.items()
        }
        spec = self._plan.spec
        batch: dict[str, JobFacet] = {
            "jobType": job_type_job.JobTypeJobFacet("BATCH", "DPDIST", "RELEASE", producer=PRODUCER)
        }
        event = RunEvent(
            eventType=RunState[kind],
            eventTime=datetime.now(UTC).isoformat(),
            run=Run(self._run, facets),  # type: ignore[arg-type]
            job=Job("dpdist", f"{spec.dataset}/{spec.name}", batch),
            inputs=inputs_of(spec.data.paths) + inputs_of(spec.public_tables) + inputs_of(spec.earlier_releases),
            outputs=[self._output()],
            producer=PRODUCER,
        )
        try:
            self._client.emit(event)
        except Exception as error:  # its text may hold an address with a key
            log.warning("a lineage event was not sent", extra={"error": type(error).__name__})

    def _output(self) -> Any:
        from openlineage.client.event_v2 import OutputDataset
        from openlineage.client.facet_v2 import schema_dataset

        fields = [
            schema_dataset.SchemaDatasetFacetFields(name=attribute.name, type=attribute.kind)
            for attribute in self._plan.released.attributes
        ]
        schema = schema_dataset.SchemaDatasetFacet(fields=fields, producer=PRODUCER)
        return OutputDataset(*named(self._plan.spec.output.path), facets={"schema": schema})


def client_of(place: str) -> Any:
    """The client for a place as `LINEAGE` names it; None for none."""
    if not place:
        return None
    if find_spec("openlineage") is None:
        raise SpecError(f"{LINEAGE} is set, which needs openlineage-python: pip install 'dpdist[lineage]'")
    from openlineage.client import OpenLineageClient
    from openlineage.client.transport.file import FileConfig, FileTransport
    from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport

    if place == "client":
        return OpenLineageClient()
    with suppress(ValueError):
        url = urlsplit(place)
        if url.scheme == "file" and url.path and not url.netloc:
            return OpenLineageClient(transport=FileTransport(FileConfig(log_file_path=url.path, append=True)))
        if url.scheme in ("http", "https") and url.hostname and "@" not in url.netloc:
            key = os.environ.get("OPENLINEAGE_API_KEY")
            config = HttpConfig(url=place, retry=dict(_RETRIES))
            if key:
                config.auth = ApiKeyTokenProvider({"apiKey": key})
            return OpenLineageClient(transport=HttpTransport(config))
    raise SpecError(
        f"{LINEAGE}: expected file:///PATH, an http(s) address without a password (the key of the server goes into "
        "OPENLINEAGE_API_KEY), or client"
    )


def inputs_of(paths: Sequence[str]) -> list[Any]:
    """The tables that are read."""
    from openlineage.client.event_v2 import InputDataset

    return [InputDataset(*named(path)) for path in paths]


def named(path: str) -> tuple[str, str]:
    """Namespace and name of a file or a folder, as OpenLineage has them: ``s3://bucket`` and the key, or ``file`` and
    the path.
    """
    scheme, separator, rest = path.partition("://")
    if separator and scheme not in ("file", "local"):
        bucket, _, key = rest.partition("/")
        return f"{scheme}://{bucket}", key or "/"
    return "file", os.path.abspath(os.path.expanduser(rest if separator else path))
