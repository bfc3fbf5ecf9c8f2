"""Discovery of frequent values and of bounds, by counts with noise and a threshold: what schemas are drafted from."""

from dpdist.families.base.family import family_in

FAMILY = family_in(__name__, "discovery", "spec:DiscoverySpec", claims="stages:claims", described="stages:described")
