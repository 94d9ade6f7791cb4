"""Rows of `beyond_text.py`, one module for each kind of data: ROWS, TINY_ROWS, `measure` and `row_text`."""
