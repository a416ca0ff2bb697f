"""Signals computed from groups, and what each means."""
