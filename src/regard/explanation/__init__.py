"""Looking inside a model, and showing what was seen: attention maps, drawings of them, and the report of a run."""
