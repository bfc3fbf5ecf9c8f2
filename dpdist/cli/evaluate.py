"""The command that evaluates a release: its options are the fields of a `Request`."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from dpdist.cli.shared import (
    REQUIRED,
    AsJson,
    Endpoint,
    Quiet,
    Settings,
    loaded,
    option,
    show,
    storage_options,
    with_options,
)
from dpdist.errors import SpecError
from dpdist.evaluation.request import Request


def _options() -> list[inspect.Parameter]:
    """The parameters of the command; an option that is not given leaves the field to the file or to its default."""
    hints, found = get_type_hints(Request, include_extras=True), []
    for one in fields(Request):
        if one.name not in Request.settings():
            continue
        kind, text = get_args(hints[one.name])
        if one.name == "release":
            found.append(option(one.name, Annotated[str, typer.Argument(metavar="RELEASE", help=text)], REQUIRED))
            continue
        if kind is not bool and isinstance(one.default, int | str):
            text = f"{text[:-1]}; default: {one.default}."
        flag = f"--{one.name.replace('_', '-')}"
        several = get_origin(kind) is tuple
        declared = typer.Option(
            f"{flag}/--no-{flag[2:]}" if one.default is True else flag, help=text, metavar="DATA" if several else None
        )
        one_of: Any = list[str] if several else Path if kind is Any else kind
        first = one_of if isinstance(one_of, type) or several else get_args(one_of)[0]
        annotation: Any = Annotated[first | None, declared]
        found.append(option(one.name, annotation))
    return found


@with_options(
    *_options(),
    option("settings", Settings),
    option("endpoint_url", Endpoint),
    option("as_json", AsJson, False),
    option("quiet", Quiet, False),
)
def evaluate(**given: Any) -> None:
    """Compare a release with the real table (CONFIDENTIAL).

    Writes one page with plots, and the figures as JSON.
    """
    from dpdist.api.evaluation import evaluate as of_api

    call = inspect.unwrap(of_api)  # whose errors are in the words of the command line
    asked = {name: value for name, value in given.items() if value is not None and name in Request.settings()}
    if "spec" in asked:
        asked["spec"] = loaded(asked["spec"], given["settings"])
    elif given["settings"]:
        raise SpecError("--set: give the spec that it overrides with --spec")
    done = call(asked.pop("release"), progress=True, storage_options=storage_options(given["endpoint_url"]), **asked)
    show(done, as_json=given["as_json"])
