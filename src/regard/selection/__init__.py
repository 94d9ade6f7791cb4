"""Choosing among many, and what the choice still lets one say of the chosen."""
