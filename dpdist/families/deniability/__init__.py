"""Plausible-deniability synthesis: structure, parameters, network, candidates and the privacy test."""

from dpdist.families.base.family import family_in

FAMILY = family_in(
    __name__, "plausible-deniability", "spec:PlausibleDeniabilitySpec", solve="solve:solve", shadow="claims:shadow"
)
