"""Learning: packing, log-probabilities in chunks, and the learners for GRPO and SFT."""
