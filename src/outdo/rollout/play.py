"""Whether and how answers have several turns: the tools and the environment of a recipe, as a sampler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from outdo.envs.environment import MakeEnvironment
from outdo.envs.factory import find_environment
from outdo.envs.toolbox import with_tools
from outdo.envs.tools import find_tools
from outdo.models.renderer import TOOLS
from outdo.recipe.schema import Recipe
from outdo.types import Prompt

if TYPE_CHECKING:
    from outdo.models.renderer import Renderer
    from outdo.rollout.episodes import EpisodeSampler
    from outdo.types import Engine, Sampler

Factory = str | Callable[..., Any] | Mapping[str, Any]


class Play(Protocol):
    """How the answers of a run are played."""

    @property
    def tool_format(self) -> str: ...

    def tools_of(self, prompt: Prompt) -> Sequence[Mapping[str, Any]]:
        """The schemas of the tools that answers to it are shown."""

    def sampler(self, engine: Engine, renderer: Renderer) -> Sampler:
        """The sampler that plays so. Raises ModelError where the model's chat template cannot show tools."""


@dataclass(frozen=True)
class EnvironmentPlay:
    """With tools, or in an environment."""

    make: MakeEnvironment
    tools: tuple[str, ...]  # names of those that every answer has: the chat template must show them
    max_turns: int
    tool_format: str = "auto"

    def tools_of(self, prompt: Prompt) -> Sequence[Mapping[str, Any]]:
        return self.make(prompt).tools or prompt.meta.get(TOOLS) or ()

    def sampler(self, engine: Engine, renderer: Renderer) -> EpisodeSampler:
        from outdo.models.tool_formats import format_of, refuse_without_tools
        from outdo.rollout.episodes import EpisodeSampler

        tool_format = format_of(self.tool_format, renderer.tokenizer)
        refuse_without_tools(renderer.tokenizer, self.tools, tool_format)
        return EpisodeSampler(engine, renderer, tool_format, self.make, self.max_turns)


def play_of(
    recipe: Recipe, environment: str = "", tools: Sequence[Any] | None = None, factory: Factory | None = None
) -> EnvironmentPlay | None:
    """By the recipe's keys, or by objects in their place; None where it names neither. `environment` is the
    task's own. Raises ToolError, before anything is loaded."""
    found = find_tools(recipe.tools if tools is None else tools)
    given = factory or recipe.environment_factory or environment
    limits: dict[str, Any] = {"tool_timeout": recipe.tool_timeout}
    limits["max_tool_calling_iterations"] = recipe.max_tool_calling_iterations or 0
    if given:
        make = find_environment(given, recipe.environment_args, tools=found, **limits)
    elif found:
        make = with_tools(found, **limits)
    else:
        return None
    return EnvironmentPlay(make, tuple(tool.name for tool in found), recipe.max_turns, recipe.tool_format)
