"""The run folder: what a run writes, and the one reader of it."""
