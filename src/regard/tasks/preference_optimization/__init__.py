"""Preference optimization: a language model that learns from preferences and rewards."""
