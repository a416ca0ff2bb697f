"""Metrics computed from groups, what each means, and the thresholds of the doctor."""
