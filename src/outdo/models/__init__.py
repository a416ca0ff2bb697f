"""Loading and saving models, and the attention that they all share."""
