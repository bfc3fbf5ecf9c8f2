"""The command that evaluates a release: its options are the fields of a `Request`."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from dpdist.cli.shared import AsJson, Endpoint, Settings, load, show, storage_options
from dpdist.errors import SpecError
from dpdist.evaluation.request import Request


def evaluate(**given: Any) -> None:
    """Compare a release with the real table: one CONFIDENTIAL page with plots, and the figures as JSON."""
    from dpdist.api.calls import evaluate as call

    asked = {name: value for name, value in given.items() if value is not None and name in Request.settings()}
    if "spec" in asked:
        asked["spec"] = load(asked["spec"], given["settings"])
    elif given["settings"]:
        raise SpecError("--set: give the spec that it overrides with --spec")
    done = call(asked.pop("release"), progress=True, storage_options=storage_options(given["endpoint_url"]), **asked)
    show(done, as_json=given["as_json"])


def _parameters() -> list[inspect.Parameter]:
    """The parameters of the command; an option that is not given leaves the field to the file or to its default."""
    hints, found = get_type_hints(Request, include_extras=True), []
    for one in fields(Request):
        if one.name not in Request.settings():
            continue
        kind, text = get_args(hints[one.name])
        if one.name == "release":
            argument = Annotated[str, typer.Argument(metavar="RELEASE", help=text)]
            found.append(inspect.Parameter(one.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=argument))
            continue
        if kind is not bool and isinstance(one.default, int | str):
            text = f"{text[:-1]}; default: {one.default}."
        flag = f"--{one.name.replace('_', '-')}"
        several = get_origin(kind) is tuple
        option = typer.Option(
            f"{flag}/--no-{flag[2:]}" if one.default is True else flag,
            help=text,
            metavar="DATA" if several else None,
        )
        one_of: Any = list[str] if several else Path if kind is Any else kind
        first = one_of if isinstance(one_of, type) or several else get_args(one_of)[0]
        annotation: Any = Annotated[first | None, option]
        found.append(inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    shared = (("settings", Settings, None), ("endpoint_url", Endpoint, None), ("as_json", AsJson, False))
    for name, kind, default in shared:
        found.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    return found


evaluate.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]
