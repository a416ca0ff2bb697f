"""Illnesses on purpose: a real run is made ill, the doctor names it, one change cures it, the signal shows it."""
