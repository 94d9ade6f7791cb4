"""Shared by the benchmark scripts: options, timing and training steps (`harness`), and tiny data (`tiny`)."""
