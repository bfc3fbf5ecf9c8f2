"""Synthesis of whole tables: select, measure, fit, rake, draw, in one Gaussian account."""

from dpdist.families.base.family import family_in

FAMILY = family_in(
    __name__,
    "synthesis",
    "spec:WholeSynthesisSpec",
    solve="accuracy:solve",
    public_tables="prior:public_digest",
    session="stages:SynthesisSession",
)
