"""From a run's curves to findings."""
