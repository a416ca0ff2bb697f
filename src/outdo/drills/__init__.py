"""Drills: a real run fails on purpose, the doctor names the failure mode, one change fixes it, the signal shows it."""
