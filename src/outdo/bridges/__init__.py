"""Other trainers: the same recipe trained by TRL or Unsloth."""
