"""Where rewards come from. A reward is a plain function: `reward(completions, **columns) -> list[float | None]`."""
