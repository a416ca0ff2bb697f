"""Text of strangers: parsed within limits, and printed so that it cannot steer a terminal."""
