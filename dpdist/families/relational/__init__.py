"""Synthesis of two linked tables, such as households and persons, in one account."""
