"""The steps of a mixing release, in order: confirm the classes, mix, write."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dpdist.cluster.cluster import Cluster
from dpdist.data.graph import locate, table_pass
from dpdist.data.report import check
from dpdist.data.split import Split
from dpdist.errors import CheckFailed
from dpdist.families.attempt import Context
from dpdist.families.mixing.discriminant import discriminant
from dpdist.families.mixing.federated.round import join_step, round_step
from dpdist.families.mixing.graph import (
    ClassStatistics,
    class_operator,
    class_statistics,
    mixture_blocks,
    part_codes,
    part_vectors,
    released_blocks,
    released_parts,
    scored,
    sums_of_mixtures,
)
from dpdist.families.mixing.mixture import Mixer
from dpdist.families.mixing.moments import Moments, noisy_moments
from dpdist.families.mixing.output import Finishing
from dpdist.families.mixing.plan import MixingPlan
from dpdist.families.mixing.restore import MixtureSums, Restoration, restoration
from dpdist.families.mixing.selection import SelectionPlan, parameters_of
from dpdist.families.mixing.spec import MixingSpec
from dpdist.families.mixing.sums import block_of, piece_of
from dpdist.publish.graph import written_parts

if TYPE_CHECKING:
    from dask.delayed import Delayed

CONFIRMED_FILE = "classes.json"
"""Which classes were confirmed: the outcomes of the noisy counts, drawn once, stored, read back."""

CHOICE_FILE = "order.txt"
"""The number of the chosen candidate, where orders are tried: drawn once, stored, read back."""

MOMENTS_FILE = "moments.npz"
"""The noisy moments of an attempt."""


def confirm_step(context: Context) -> None:
    """Gather the records by class, confirm the declared minima with noisy counts, and draw the moments.

    Raises
    ------
    DataError
        The table breaks its declared policies.
    CheckFailed
        No class was confirmed.
    """
    spec, plan = _of(context)
    label = spec.table.names.index(spec.mixing.label)
    with context.stage("reading"):
        table = context.cluster.compute([locate(context.table, name="locate")])[0]
    with context.stage("gathering classes") as progress:
        classes, apart = class_operator(label, spec.class_codes), isinstance(plan, SelectionPlan)
        split = Split(context.key, (spec.mixed_share, 1 - spec.mixed_share)) if apart else None
        graphs = [
            table_pass(table, classes, name="gathering", split=split, label=part)
            for part in ((0, 1) if apart else (None,))
        ]
        held, *held_out = context.cluster.persist(graphs, progress=progress)
        summed = None if plan.moments is None else plan.encoding
        statistics, report = context.cluster.compute([class_statistics(held[0], summed), held[1]])
    context.operator["table"] = report.confidential(spec.table)
    context.operator["class_sizes"] = dict(zip((part.value for part in plan.classes), statistics.sizes, strict=True))
    check(report, spec.table)
    confirmed = json.loads(context.stored(CONFIRMED_FILE, lambda: _confirmed(context, plan, statistics)))
    if not any(confirmed):
        raise CheckFailed(
            "no class of mixing.classes has its declared minimum confirmed, so nothing is published: declare less, "
            "from public knowledge. The charge stays spent"
        )
    encoding, clip = plan.encoding, plan.clip
    if plan.moments is not None:
        moments = _moments_of(context.stored(MOMENTS_FILE, lambda: _drawn_moments(context, plan, statistics)))
        divide = spec.mixing.scaling == "standardised"
        encoding = plan.encoding.scaled(moments, divide=divide)
        clip = clip if clip is not None else moments.norm(divide=divide)
    context.results["held_out"] = held_out[0][0] if held_out else None
    context.results.update(codes=held[0], confirmed=confirmed, encoding=encoding, clip=clip)
    context.public["clip"] = clip


def _confirmed(context: Context, plan: MixingPlan, statistics: ClassStatistics) -> bytes:
    """Whether each class passes its check; a class that cannot fill a mixture never does."""
    noise = context.noise
    outcomes = []
    for part, size in zip(plan.classes, statistics.sizes, strict=True):
        noisy = size + int(noise.discrete_laplace(f"checks/class/{part.code}", 1, scale=part.check.scale)[0])
        outcomes.append(part.check.passes(noisy) and size >= plan.order)
    return json.dumps(outcomes).encode()


def _drawn_moments(context: Context, plan: MixingPlan, statistics: ClassStatistics) -> bytes:
    if plan.moments is None:
        raise ValueError("scaling by bounds has no moments")
    minimum = sum(part.mixtures.minimum for part in plan.classes)
    records = sum(statistics.sizes)
    moments = noisy_moments(context.noise, plan.encoding, records, statistics.sums, plan.moments, minimum=minimum)
    buffer = io.BytesIO()
    np.savez(buffer, mean=moments.mean, variance=moments.variance, deviation=moments.deviation)
    return buffer.getvalue()


def _moments_of(content: bytes) -> Moments:
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return Moments(stored["mean"], stored["variance"], stored["deviation"])


def mix_step(context: Context) -> None:
    """The noisy mixtures of every confirmed class, in the workers' memory, and how to restore their spread."""
    spec, plan = _of(context)
    context.before_noise()
    context.results["block"] = [
        block_of(part.mixtures.records, width=plan.encoding.width, slots=context.cluster.slots) for part in plan.classes
    ]
    if isinstance(plan, SelectionPlan):
        tried = [_mixed(context, one, prefix=f"mixing/order-{one.order}") for one in plan.candidates]
        made_of = partial(_chosen, context, plan, [sums for _, sums in tried])
        number = int(context.stored(CHOICE_FILE, made_of))
        plan, (blocks, sums) = plan.candidates[number], tried[number]
        context.public.update(parameters_of(plan))
    else:
        blocks, sums = _mixed(context, plan, prefix="mixing")
    restorations: dict[int, Restoration] = {}
    for place, made in sums.items() if spec.mixing.spread == "restored" else ():
        sigma = plan.sigma_over_clip * context.results["clip"]
        restored = restoration(made, context.results["encoding"], order=plan.order, sigma=sigma)
        stored = context.stored(f"restoration-{place}.npz", restored.to_bytes)
        restorations[place] = Restoration.from_bytes(stored)
    context.results.update(blocks=blocks, restorations=restorations, label_sigma=plan.label_sigma)


def _mixed(
    context: Context, plan: MixingPlan, *, prefix: str
) -> tuple[dict[int, list[Delayed]], dict[int, MixtureSums]]:
    """The mixtures of each confirmed class at one order, and their sums where these are needed."""
    clip = context.results["clip"]
    summed = isinstance(context.plan, SelectionPlan) or _of(context)[0].mixing.spread == "restored"
    blocks: dict[int, list[Delayed]] = {}
    sums: dict[int, MixtureSums] = {}
    for place, part in enumerate(plan.classes):
        if not context.results["confirmed"][place]:
            continue
        mixer = Mixer(order=plan.order, clip=clip, sigma=plan.sigma_over_clip * clip, name=f"{prefix}/{part.code}")
        tried = f", order {plan.order}" if isinstance(context.plan, SelectionPlan) else ""
        stage = f"mixing {plan.spec.mixing.label} {place + 1} of {len(plan.classes)}{tried}"
        with context.stage(stage) as progress:
            graphs = mixture_blocks(
                context.results["codes"],
                place=place,
                encoding=context.results["encoding"],
                mixer=mixer,
                records=part.mixtures.records,
                block=context.results["block"][place],
                key=context.key,
            )
            blocks[place] = context.cluster.persist(graphs, progress=progress)
        if summed:
            block, piece = context.results["block"][place], piece_of(context.results["encoding"].width)
            graph = sums_of_mixtures(blocks[place], block=block, piece=piece)
            sums[place] = context.cluster.compute([graph])[0]
    return blocks, sums


def _chosen(context: Context, plan: SelectionPlan, sums: Sequence[Mapping[int, MixtureSums]]) -> bytes:
    """The number of the candidate that is released, by noisy scores on the records that were held out."""
    encoding, clip = context.results["encoding"], context.results["clip"]
    told = [
        discriminant(made, order=one.order, sigma=one.sigma_over_clip * clip)
        for made, one in zip(sums, plan.candidates, strict=True)
    ]
    with context.stage("comparing orders") as progress:
        graphs = scored(context.results["held_out"], encoding, clip, told)
        scores = context.cluster.compute(graphs, progress=progress)
    context.operator["scores"] = dict(zip((one.order for one in plan.candidates), scores, strict=True))
    return str(plan.choice.choose(context.noise, scores)).encode()


def write_step(context: Context) -> None:
    """Decode the mixtures, or keep their vectors, and write the parts."""
    spec, plan = _of(context)
    label = spec.table.names.index(spec.mixing.label)
    kept = tuple(part.code for part, kept in zip(plan.classes, context.results["confirmed"], strict=True) if kept)
    released: list[Delayed] = []
    rows: list[int] = []
    for place, blocks in context.results["blocks"].items():
        part = plan.classes[place]
        finishing = Finishing(
            encoding=context.results["encoding"],
            restoration=context.results["restorations"].get(place),
            decode=spec.mixing.release == "records",
            label=label,
            classes=kept,
            place=kept.index(part.code),
            label_sigma=context.results["label_sigma"],
            name=f"mixing/{part.code}",
        )
        block = context.results["block"][place]
        released += released_blocks(blocks, finishing, block=block, key=context.key)
        rows += [min(block, part.mixtures.records - start) for start in range(0, part.mixtures.records, block)]
    parts = released_parts(released, rows, rows_per_part=spec.output.rows_per_part)
    if spec.mixing.release == "records":
        codes = part_codes(parts, label, spec.label.dtype)
    else:
        codes = part_vectors(parts, spec.label, reach=(plan.released.attributes[0].bounds or (0, 0))[1])
    with context.stage("writing") as progress:
        graphs = written_parts(
            codes,
            schema=plan.released,
            form=plan.form,
            store=context.output,
            attempt=context.attempt,
            key=context.key,
            rows_per_part=spec.output.rows_per_part,
        )
        context.parts = tuple(context.cluster.compute(graphs, progress=progress))


def classes_step(context: Context) -> None:
    """Confirm the classes, here or at the clients, and tell which are left out."""
    (confirm_step if context.table.files else join_step)(context)
    spec, plan = _of(context)
    left_out = [part.value for part, kept in zip(plan.classes, context.results["confirmed"], strict=True) if not kept]
    context.public["classes_left_out"] = left_out
    if left_out:
        names = ", ".join(map(repr, left_out))
        context.progress(f"left out, its minimum not confirmed: {spec.mixing.label} {names}", 1, 1)


def mixtures_step(context: Context) -> None:
    """Mix, here or at the clients."""
    (mix_step if context.table.files else round_step)(context)


def parts_step(context: Context) -> None:
    """Write the parts: on the cluster, or in this process where the cluster is the clients'."""
    if context.table.files:
        write_step(context)
        return
    here = replace(context, cluster=Cluster())
    write_step(here)
    context.parts = here.parts


STEPS: dict[str, Callable[[Context], None]] = {"classes": classes_step, "mixtures": mixtures_step, "write": parts_step}
"""The steps of a mixing release, in order."""


def _of(context: Context) -> tuple[MixingSpec, MixingPlan]:
    spec, plan = context.spec, context.plan
    if not isinstance(spec, MixingSpec) or not isinstance(plan, MixingPlan):
        raise TypeError("expected the spec and the plan of a mixing release")
    return spec, plan
