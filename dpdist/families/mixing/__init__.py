"""Class-wise noisy mixtures (DP-CDA), central and federated."""

from dpdist.families.base.family import family_in

FAMILY = family_in(__name__, "mixing", "spec:MixingSpec", solve="budget:solve", as_released="plan:as_released")
