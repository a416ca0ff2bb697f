"""Other trainers: the same recipe trained by TRL or Unsloth (`backend`), and converted to what they and others read."""
