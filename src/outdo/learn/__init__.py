"""Learning: packing, log-probabilities in chunks, the update, the supervised warm-up."""
