"""Evaluation on held-out problems: pass@k, intervals, paired differences, retention."""
