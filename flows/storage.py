"""Endpoint and credentials of the object storage from a Prefect block, where they are not in the worker's environment.

Prefect keeps the block encrypted. A run reads it when it begins, and passes it to this process and to the workers of an
embedded cluster through the variables that every S3 client reads. Workers of a running cluster have their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dpdist.errors import SpecError

BLOCK = "DPDIST_STORAGE_BLOCK"
"""Environment variable of a worker: a block of prefect-aws, ``aws-credentials/NAME`` or ``minio-credentials/NAME``."""


@contextmanager
def storage_of_block() -> Iterator[None]:
    """Use the block that the worker names, if any, for the object storage of this process while the context lasts.

    Raises
    ------
    SpecError
        There is no such block, it is of another kind, or it holds no credentials.
    """
    name = os.environ.get(BLOCK)
    if not name:
        yield
        return
    variables = _variables(name)
    before = {variable: os.environ.get(variable) for variable in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _variables(name: str) -> dict[str, str | None]:
    """The contents of a block as environment variables; None for those that must be unset."""
    kind, _, _ = name.partition("/")
    try:
        block = _kinds()[kind].load(name.removeprefix(f"{kind}/"), _sync=True)
        credentials = block.get_boto3_session().get_credentials()
        keys = credentials and credentials.get_frozen_credentials()
    except KeyError:
        raise SpecError(f"{BLOCK}: expected aws-credentials/NAME or minio-credentials/NAME") from None
    except ValueError:
        raise SpecError(f"{BLOCK}: Prefect has no usable block {name!r}: make it, or correct the name") from None
    except Exception as error:  # its text may hold what the block holds
        raise SpecError(f"{BLOCK}: the block {name!r} gives no credentials ({type(error).__name__})") from None
    if keys is None:
        raise SpecError(f"{BLOCK}: the block {name!r} holds no credentials")
    client = block.aws_client_parameters
    bundle = client.verify_cert_path
    found = {
        "AWS_ACCESS_KEY_ID": keys.access_key,
        "AWS_SECRET_ACCESS_KEY": keys.secret_key,
        "AWS_SESSION_TOKEN": keys.token,
        "AWS_PROFILE": None,
        "AWS_ENDPOINT_URL": client.endpoint_url,
        "AWS_REGION": block.region_name,
        "AWS_DEFAULT_REGION": block.region_name,
        "AWS_CA_BUNDLE": None if bundle is None else str(bundle),
    }
    return {
        name: value
        for name, value in found.items()
        if value is not None or name in ("AWS_SESSION_TOKEN", "AWS_PROFILE")
    }


def _kinds() -> dict[str, Any]:
    from prefect_aws import AwsCredentials, MinIOCredentials

    return {kind.get_block_type_slug(): kind for kind in (AwsCredentials, MinIOCredentials)}


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
