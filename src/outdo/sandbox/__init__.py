"""Runs code that may hang, crash or be hostile, in processes that can be killed."""
