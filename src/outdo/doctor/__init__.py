"""Diagnoses a run from its curves and answers."""
