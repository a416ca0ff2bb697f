"""Names that other trainers have for rewards. Every command resolves reward names here."""

from __future__ import annotations

# Rewards of open-r1 and TRL, by their names in recipes and by their functions: our name for the same reward.
ALIASES = {
    "accuracy": "math",
    "accuracy_reward": "math",
    "binary_code": "code",
    "binary_code_reward": "code",
    "code_reward": "code_fraction",
    "cosine_scaled_reward": "cosine",
    "format_reward": "format",
    "get_cosine_scaled_reward": "cosine",
    "get_repetition_penalty_reward": "repetition",
    "get_soft_overlong_punishment": "overlong",
    "len_reward": "length",
    "reasoning_steps_reward": "reasoning_steps",
    "repetition_penalty": "repetition",
    "repetition_penalty_reward": "repetition",
    "soft_overlong_punishment": "overlong",
    "tag_count_reward": "tag_count",
}
_PACKAGES = ("trl", "open_r1")  # their rewards are ours, and are not imported


def canonical_reward(name: str) -> str:
    """Our name for a reward. A function in a package is `package.module.function` in TRL, and
    `package.module:function` here."""
    module, _, function = name.replace(":", ".").rpartition(".")
    if module.partition(".")[0] in _PACKAGES and function in ALIASES:
        return ALIASES[function]
    is_dotted = ":" not in name and all(part.isidentifier() for part in name.split(".")) and module
    if is_dotted and function not in ("py", "json"):
        return f"{module}:{function}"
    return ALIASES.get(name, name)
