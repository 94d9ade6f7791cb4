"""The metrics of this package, one file for each kind of output.

Each file has functions that count, from plain lists, what a score needs for each
example, and the `Metric` objects that `pyproject.toml` registers. Look one up with
`regard.evaluation.find_metric("bleu")`, which imports only the file that it needs.
"""
