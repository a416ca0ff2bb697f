"""Keys of ours that another launcher's configuration asks for, with a line for each that is translated or ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outdo.errors import RecipeError
from outdo.recipe.forms import format_value, number


@dataclass
class Translated:
    """What one configuration comes to."""

    where: str  # the file, or what messages call the source
    what: str  # the key that has the configuration
    keys: dict[str, Any] = field(default_factory=dict)  # ours
    taken: list[str] = field(default_factory=list)  # "stage=2 is parallel_sharding=grads"
    ignored: dict[str, list[str]] = field(default_factory=dict)  # theirs, by reason

    def take(self, theirs: str, value: Any, name: str, ours: Any) -> None:
        """Sets a key of ours. A second, different value is refused, except that parameters include the optimizer."""
        if name == "parallel_offload" and "parameters" in (ours, self.keys.get(name)):
            self.keys[name] = "parameters"
        elif self.keys.setdefault(name, ours) != ours:
            raise RecipeError(
                f"{self.where}: {self.what}: {theirs} asks for {name}={format_value(ours)}, and another part for "
                f"{format_value(self.keys[name])}"
            )
        shown = "" if isinstance(value, dict) else f"={format_value(value)}"
        self.taken.append(f"{theirs}{shown} is {name}={format_value(ours)}")

    def ignore(self, theirs: str, reason: str) -> None:
        self.ignored.setdefault(reason, []).append(theirs)

    def keys_beside(self, given: Mapping[str, Any], synonyms: Mapping[str, str]) -> dict[str, Any]:
        """Our keys that a recipe does not set itself. Raises RecipeError where it sets another value: their trainers
        refuse that too."""
        own = {synonyms.get(key, key).replace("parallel.", "parallel_"): value for key, value in given.items()}
        group = given.get("parallel")
        own |= {f"parallel_{key}": value for key, value in group.items()} if isinstance(group, Mapping) else {}
        for name, value in self.keys.items():
            if name in own and number(own[name]) != value:
                raise RecipeError(
                    f"{self.where}: {self.what} asks for {name}={format_value(value)}, and the recipe sets "
                    f"{format_value(own[name])}: leave one of them out"
                )
        return {name: value for name, value in self.keys.items() if name not in own}

    def notes(self) -> list[str]:
        """A line for what was translated, and one for each reason to ignore."""
        lines = [f"{self.where}: {self.what}: {', '.join(self.taken)} here"] if self.taken else []
        lines += [
            f"{self.where}: {self.what}: {', '.join(keys)} ignored, because {reason}"
            for reason, keys in self.ignored.items()
        ]
        return lines
