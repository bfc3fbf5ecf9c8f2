"""What an evaluation says of a release of records, and how its page and its figures are written.

What it computes is confidential: it reads private records and adds no noise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpdist.errors import OutputUnwritable, SpecError
from dpdist.evaluation import attacks
from dpdist.evaluation.attacks.membership import mechanism_of_release
from dpdist.evaluation.inputs import Inputs, require_records
from dpdist.evaluation.page.files import Folder, Pages
from dpdist.evaluation.page.page import PageAbout, PageSection, does_not_apply, render
from dpdist.evaluation.records import View, drawn
from dpdist.evaluation.request import Request
from dpdist.evaluation.utility import learning, similarity
from dpdist.evaluation.utility.checks import coverage_section, holdout_section
from dpdist.evaluation.utility.models import Trial, make_trial, named_target
from dpdist.privacy.arrays import Codes
from dpdist.publish.manifest import MANIFEST, Manifest

if TYPE_CHECKING:
    from dpdist.evaluation.publishable import FiguresPublication
    from dpdist.storage.store import Store

PAGE, FIGURES = "evaluation.html", "evaluation.json"

_NEEDED = {"sklearn": "scikit-learn", "matplotlib": "matplotlib", "jinja2": "jinja2"}
_PART_ROWS = 20_000


def require_packages() -> None:
    """Refuse to begin without the optional packages. Raises SpecError: one is missing."""
    missing = [name for module, name in _NEEDED.items() if find_spec(module) is None]
    if missing:
        raise SpecError(f"an evaluation needs {', '.join(missing)}: pip install 'dpdist[evaluate]'")


def record_sections(
    inputs: Inputs, request: Request, publication: FiguresPublication | None = None
) -> list[PageSection]:
    """The sections on released records: utility, attacks if they are asked for, and what may be published."""
    view, seed, progress = inputs.view, inputs.seed, inputs.progress
    target = named_target(view, request.target or made_for(inputs.manifest, view))
    counts = inputs.marginals()
    sections = [] if publication is None else [publication.publish(counts)]
    require_records(inputs.reports["real"])  # whether figures are published is the same for a table without any
    weighted = inputs.weight is not None
    sections.append(similarity.marginal_section(counts, view, seed=seed, weighted=weighted))
    sections.append(similarity.correlation_section(counts, view))
    del counts
    if inputs.schema.rules:
        sections.append(inputs.rules())
    samples = inputs.samples()
    sections.append(similarity.wide_section(samples, view, seed=seed))
    sections += _without_bad_holdout(samples, inputs)
    known = not weighted and len(samples["real"][0]) >= inputs.reports["real"].kept
    sections += coverage_section(samples["real"], inputs.released, known=known)
    real, released = (drawn(samples[name], _PART_ROWS, np.random.default_rng(seed)) for name in ("real", "released"))
    sections.append(similarity.component_section(view.codes(real), view.codes(released), view))
    trial = _trial(samples, request)
    sections.append(learning.training_section(trial, view, target, progress=progress))
    sections.append(learning.attribute_section(trial, view, progress=progress))
    numbers = [i for i, axis in enumerate(view.axes) if axis.edges is not None]
    if numbers:
        number = target if target in numbers else _response(inputs.manifest, view, numbers)
        sections.append(learning.regression_section(trial, view, number, progress=progress))
    if request.attacks:
        sections += attack_sections(inputs, samples)
    return sections


def made_for(manifest: Manifest, view: View) -> str | None:
    """The attribute with values that a release was made to predict, where it was."""
    for section, setting in (("model", "target"), ("mixing", "class")):
        settings = manifest.spec.get(section)
        name = settings.get(setting) if isinstance(settings, dict) else None
        if name in view.names and view.axes[view.names.index(name)].edges is None:
            return str(name)
    return None


def _response(manifest: Manifest, view: View, numbers: list[int]) -> int:
    """The number that a release was made to predict, else the last one."""
    settings = manifest.spec.get("prediction")
    name = settings.get("response") if isinstance(settings, dict) else None
    place = view.names.index(name) if name in view.names else -1
    return place if place in numbers else numbers[-1]


def vector_sections(inputs: Inputs, request: Request) -> list[PageSection]:
    """The sections on released mixtures, which are no records: models that are trained on them."""
    target = named_target(inputs.view, request.target or made_for(inputs.manifest, inputs.view))
    samples = inputs.samples()
    sections = _without_bad_holdout(samples, inputs)
    trial = _trial(samples, request)
    why = (
        "the release holds means of several records each, with noise; their marginals, distances and neighbours are "
        "not those of records."
    )
    return [
        *sections,
        learning.training_section(trial, inputs.view, target, progress=inputs.progress),
        does_not_apply("marginals", "Marginals, correlations and attacks", why),
    ]


def _without_bad_holdout(samples: dict[str, Codes], inputs: Inputs) -> list[PageSection]:
    """Take a hold-out that is not one out of the samples; the section that says so."""
    if "holdout" not in samples:
        return []
    section = holdout_section(samples["real"], samples["holdout"], seed=inputs.seed)
    if section is None:
        return []
    del samples["holdout"]
    return [section]


def _trial(samples: Mapping[str, Codes], request: Request) -> Trial:
    tables = samples["real"], samples["released"], samples.get("holdout")
    return make_trial(*tables, train=request.train, test=request.test, seed=request.seed)


def attack_sections(inputs: Inputs, samples: Mapping[str, Codes]) -> list[PageSection]:
    """The sections on attacks; shadow models run the mechanism itself where the manifest says all about it."""
    records, written = inputs.reports["real"].kept, inputs.released.decoder.merged
    tables = attacks.AttackTables(
        released=samples["released"],
        training=samples["real"],
        holdout=samples.get("holdout"),
        schema=inputs.schema,
        seed=inputs.seed,
    )
    mechanism = mechanism_of_release(inputs.manifest, training=records, written=written)
    sections = attacks.attack_sections(tables, progress=inputs.progress, mechanism=mechanism)
    if "holdout" in samples:
        return sections
    advice = (
        " The one that was given is not used."
        if inputs.holdout is not None
        else " Give a hold-out: records like the real ones that the release was not made from."
    )
    return [replace(s, verdict=s.verdict + advice) if s.figures.get("applies") is False else s for s in sections]


def about_release(store: Store, manifest: Manifest, reports: Mapping[str, Any], request: Request) -> PageAbout:
    """What the page says of a release."""
    facts = [
        ("kind", manifest.kind),
        (f"released {manifest.counted}", f"{manifest.rows:,}"),
        ("attributes", f"{len(manifest.table.attributes)}"),
        ("released on", manifest.created.isoformat()),
        ("evaluated on", date.today().isoformat()),
    ]
    for name, title in (("real", "real records"), ("holdout", "held-out records")):
        if name in reports:
            report = reports[name]
            dropped = f" (of {report.rows:,} rows)" if report.rows != report.kept else ""
            facts.append((title, f"{report.kept:,}{dropped}"))
    if "holdout" not in reports and manifest.counted == "records":
        facts.append(("held-out records", "none"))
    facts += [("seed", str(request.seed)), ("attempt", manifest.attempt[:8])]
    measured = manifest.parameters.get("accuracy")
    sentence = measured.get("sentence") if isinstance(measured, dict) else None
    return PageAbout(
        name=manifest.name,
        facts=tuple(facts),
        guarantees=tuple(str(item["sentence"]) for item in manifest.guarantees),
        accuracy=sentence if isinstance(sentence, str) and sentence else None,
        not_private=manifest.not_private,
        footer=f"Release {manifest.name} at {store.uri}, made with dpdist {manifest.packages.get('dpdist', '')}. "
        "The same figures are in evaluation.json.",
    )


def to_json(about: PageAbout, sections: Sequence[PageSection], manifest: Manifest) -> dict[str, Any]:
    """The figures of an evaluation as a JSON object."""
    return {
        "confidential": about.banner,
        "release": manifest.name,
        "kind": manifest.kind,
        "attempt": manifest.attempt,
        **({"not_private": about.not_private} if about.not_private else {}),
        "guarantees": list(about.guarantees),
        **({"accuracy": about.accuracy} if about.accuracy else {}),
        "facts": dict(about.facts),
        "sections": {section.name: section.to_json() for section in sections},
    }


def check_output(pages: Pages, release: Store) -> None:
    """Refuse a place in or around a release. Raises SpecError: it is one; OutputUnwritable: it cannot be written."""
    if isinstance(pages, Folder):
        shown, place = str(pages.path), pages.path.resolve()
        inside, home = [place, *place.parents], Path(release.uri).resolve() if release.is_local else None
        overlap = home is not None and (home in inside or place in home.parents)
        others = (str(above) for above in inside if (above / MANIFEST).exists())
    else:
        shown = pages.store.uri
        bucket, *rest = shown.removeprefix("s3://").split("/")
        overlap = release.contains(shown) or pages.store.contains(release.uri)
        stores = (pages.store.beside("s3://" + "/".join([bucket, *rest[:end]])) for end in range(len(rest) + 1))
        others = (store.uri for store in stores if store.exists(MANIFEST))
    if overlap:
        raise SpecError(
            f"--output {shown} and the release must not contain each other: an evaluation is confidential, the release "
            "is published"
        )
    for other in others:
        raise SpecError(f"--output {shown} is inside a release ({other}): an evaluation is confidential")
    if not isinstance(pages, Folder):
        pages.store.check_writable()
        return
    standing = next(above for above in inside if above.exists())
    if not standing.is_dir() or not os.access(standing, os.W_OK | os.X_OK):
        raise OutputUnwritable(
            f"--output {shown}: {standing} is no folder that can be written: choose another --output"
        )


def write(pages: Pages, about: PageAbout, sections: Sequence[PageSection], manifest: Manifest) -> tuple[str, str]:
    """Write page and figures for the owner alone; return their addresses. Raises OutputUnwritable."""
    figures = json.dumps(to_json(about, sections, manifest), indent=1, allow_nan=False) + "\n"
    advice = "choose another --output"
    page = pages.write(PAGE, render(about, sections).encode(), advice=advice)
    return page, pages.write(FIGURES, figures.encode(), advice=advice)
