"""Two-stage synthesis: synthetic inputs mixed with original ones, responses from a regression."""

from dpdist.families.base.family import family_in

FAMILY = family_in(__name__, "two-stage", "spec:TwoStageSpec", session="private.stages:PredictionSession")
