"""Synthesis of two linked tables, such as households and persons, in one account."""

from dpdist.families.base.family import family_in

FAMILY = family_in(__name__, "relational", "spec:RelationalSpec", linked="readers:linked", claims="readers:claims")
