"""The recipe: its schema, loading it, other trainers' keys, and what a user names."""
