"""Attributes, their domains and the schema of a table."""

from dpdist.schema.schema import Attribute, Category, Count, Edges, Groups, Schema, Width, validation_message
from dpdist.schema.strict_yaml import load_yaml

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
