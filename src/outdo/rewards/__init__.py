"""Rewards: the built-in graders, their composition, and the audit."""
