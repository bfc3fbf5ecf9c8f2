"""Attributes, their domains and the schema of a table."""

from dpdist.spec.groups import Edges, Groups, Width
from dpdist.spec.schema import Attribute, Category, Count, Schema
from dpdist.spec.strict_yaml import load_yaml
from dpdist.spec.validation import validation_message

__all__ = [
    "Attribute",
    "Category",
    "Count",
    "Edges",
    "Groups",
    "Schema",
    "Width",
    "load_yaml",
    "validation_message",
]
