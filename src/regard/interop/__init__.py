"""Models that others have trained: the only place that knows their names."""
