"""A record is held by one client: each is charged for its own records alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from federations import federation

from dpdist.errors import SpecError
from dpdist.spec.reader import load


def _with_paths(folder: Path, *paths: Any, **changes: Any) -> None:
    tree = federation(folder).model_dump(mode="json", by_alias=True)
    for client, path in zip(tree["federated"]["clients"], paths, strict=False):
        client["path"] = path
    load({**tree, **changes})


def test_two_clients_of_one_machine_name_different_files(tmp_path: Path) -> None:
    """One file was mixed twice, charged once to each of two data sets."""
    mine = f"{tmp_path}/north/people.parquet"
    link = tmp_path / "link.parquet"
    federation(tmp_path)
    link.symlink_to(mine)
    for other in (mine, f"{tmp_path}/south/../north/people.parquet", str(link), ["other.parquet", mine]):
        with pytest.raises(SpecError, match="have the same files"):
            _with_paths(tmp_path, mine, other)


def test_two_clients_name_different_objects_of_a_store(tmp_path: Path) -> None:
    address = {"mode": "address", "address": "tls://host:8786"}
    with pytest.raises(SpecError, match="have the same files"):
        _with_paths(tmp_path, "s3://bucket/people", "s3://bucket/people/", cluster=address)
    _with_paths(tmp_path, "/data/people.parquet", "/data/people.parquet", cluster=address)  # each on its own machine
