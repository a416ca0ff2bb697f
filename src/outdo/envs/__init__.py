"""What answers an answer: environments, tools, and adapters for those that users have."""
