"""Where prompts come from: a task is a function that yields `Prompt`s, and the names of its rewards."""
