"""Where prompts come from. A task is a function that yields `Prompt`s, plus the names of its rewards."""
