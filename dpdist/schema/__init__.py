"""Attributes, their domains and the schema of a table."""

from dpdist.schema.schema import Attribute, Category, Count, Edges, Groups, Schema, Width
from dpdist.schema.strict_yaml import load_yaml
from dpdist.schema.validation import validation_message

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
