"""The federated release as a flow: who takes part is shown, what they hold is not."""

from pathlib import Path
from typing import Any

import pytest
from federations import federation, states
from flowruns import shown_artifacts
from releases import project

from dpdist import errors
from dpdist.publish.verify import verify

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture
def federated(prefect_home: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The flow; it waits for nothing."""
    import flows.federated
    import flows.release

    monkeypatch.setattr(flows.release, "DELAYS", (0, 0))
    return flows.federated.federated


def test_two_clients_release_together(tmp_path: Path, federated: Any, prefect_home: tuple[Path, ...]) -> None:
    spec = federation(tmp_path, names=("east", "west"), name="Flow.1")
    inline = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert federated(inline) == spec.output.path
    assert verify(spec.output.path).records == 2_000
    assert states(spec) == {"": ["committed"], "east": ["committed"], "west": ["committed"]}
    shown = {key: artifact for key, artifact in shown_artifacts().items() if key.startswith("people-flow-1")}
    assert {key.removeprefix("people-flow-1-") for key in shown} == {
        *("plan", "charge", "classes", "mixtures", "records", "write"),
        *("publish", "link", "guarantee", "clients", "round"),
    }
    assert "client-east" in shown["people-flow-1-clients"].data
    assert shown["people-flow-1-round"].description == "2 clients took part"
    assert "correlated noise against a coordinator" in shown["people-flow-1-plan"].data
    held = b"".join(path.read_bytes() for folder in prefect_home for path in folder.rglob("*") if path.is_file())
    assert b"people-flow-1-round" in held
    for name in ("east", "west"):
        record = next((tmp_path / name / "work").glob("*/run-record.json")).read_text()
        assert '"class_sizes"' in record
        assert str(tmp_path / name / "identity.pem").encode() in held  # the spec is no secret
        assert (tmp_path / name / "identity.pem").read_bytes().splitlines()[1] not in held


def test_a_spec_without_clients_is_refused(tmp_path: Path, federated: Any) -> None:
    with pytest.raises(errors.SpecError, match="no clients"):
        federated(project(tmp_path).model_dump(mode="json", by_alias=True, exclude_none=True))
