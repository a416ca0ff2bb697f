"""The reward `math`: reads answers as formulas, and compares what they mean."""

from outdo.rewards.maths.grader import TIMEOUT, math

__all__ = ["TIMEOUT", "math"]
