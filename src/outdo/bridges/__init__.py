"""To and from other trainers: a recipe as a script of theirs, and training by their engines."""
