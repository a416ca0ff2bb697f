"""Every generator of reasoning-gym as a task: `reasoning_gym/NAME`, with the generator's own options.

Problems are generated in worker processes. There a hanging generator can be killed, and Python's sets, which several
generators draw from, have the same order in every run. Each problem has its own hashed seed, because the library's
seeds (`seed + index`) overlap between neighbours. Its split is decided by the hash of its question.

Not covered: one problem in ten is held out, so a large test set of a slow generator (knight_swap) takes minutes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import random
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from outdo.errors import TaskError, did_you_mean
from outdo.sandbox import inside
from outdo.sandbox.pool import Pool
from outdo.seeds import seed_of
from outdo.tasks.splits import belongs
from outdo.types import Prompt

INSTRUCTION = "Give only your final answer, between <answer> and </answer>."
TIMEOUT_S = 30.0  # for generating one problem
MAX_MISSES = 300  # problems in a row of the other split, before this split is refused as empty
MAX_FAILURES = 8  # problems in a row that could not be generated
MAX_BATCH = 16  # problems generated in parallel

# Generators that give an example of an answer instead of the answer, and where; and those that give none.
EXAMPLES = {
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",  # only of cubes of size 3
}
NO_GOLD = {"boxnet", "rush_hour"}  # many plans are correct; the puzzles come from a list without solutions


def prompts(split: str, seed: int, /, name: str = "", **options: Any) -> Iterator[Prompt]:
    """Endless problems; none if the split is empty. `options` are fields of the generator's configuration."""
    options = validate_options(name, options)
    index, batch, missed, failed = 0, 1, 0, 0
    while missed < MAX_MISSES:
        seeds = [seed_of("reasoning_gym", name, split, seed, index + i) % 2**32 for i in range(batch)]
        for reply in _workers().run([("outdo.tasks.gym:make", (name, options, s)) for s in seeds], TIMEOUT_S):
            if reply.kind != "value":
                failed += 1
                if failed == MAX_FAILURES:
                    raise TaskError(f"reasoning_gym/{name} failed {failed} times in a row: {reply.message}")
                continue
            failed = 0
            prompt = _prompt(inside.decode(json.loads(reply.value)))
            missed = 0 if belongs(prompt.id, split) else missed + 1
            if not missed:
                yield prompt
        index, batch = index + batch, min(2 * batch, MAX_BATCH)


def teacher(prompt: Prompt, rng: random.Random) -> str | None:
    """The answer in the requested format; None if the generator gives none."""
    return None if prompt.answer is None else f"<answer>{prompt.answer}</answer>"


def validate_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in the types that the generator expects. Raises TaskError for an unknown generator or option."""
    configs = generators()
    if name not in configs:
        meant = did_you_mean(name, configs, "did you mean reasoning_gym/{}? ")
        raise TaskError(f"reasoning_gym has no generator {name!r}: {meant}It has {', '.join(configs)}")
    fields = {field.name: field for field in dataclasses.fields(configs[name]) if field.name not in ("seed", "size")}
    for key in options:
        if key not in fields:
            meant = did_you_mean(key, fields, "did you mean {!r}? ")
            takes = f"It takes {', '.join(fields)}" if fields else "It takes none"
            raise TaskError(f"reasoning_gym/{name} has no option {key!r}: {meant}{takes}")
    typed = {
        key: tuple(value) if isinstance(value, list) and isinstance(fields[key].default, tuple) else value
        for key, value in options.items()
    }
    if name == "composite":
        typed["datasets"] = [_part(part) for part in typed.get("datasets") or []]
    try:
        config = _config(name, typed, 0)
        getattr(config, "validate", lambda: None)()
    except Exception as error:  # mostly the generator's own asserts
        raise TaskError(f"reasoning_gym/{name} refuses {dict(options)}: {error or type(error).__name__}") from None
    return typed


@cache
def generators() -> dict[str, Any]:
    """The configuration class of every generator, by name. Raises TaskError if reasoning-gym is not installed."""
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise TaskError(f"reasoning_gym/… needs reasoning-gym ({error}): pip install 'outdo[gym]'") from None
    return {name: config for name, (_, config) in sorted(DATASETS.items())}


def make(name: str, options: Mapping[str, Any], seed: int) -> str:
    """One problem, with what its grader needs, as tagged JSON. Runs in a worker process of `_workers`."""
    import numpy as np
    from reasoning_gym.factory import DATASETS

    random.seed(seed)  # a few generators use the global states
    np.random.seed(seed)
    with contextlib.redirect_stdout(io.StringIO()):
        entry = DATASETS[name][0](_config(name, options, seed))[0]
    entry = _plain({key: entry[key] for key in ("question", "answer", "metadata")})
    if name == "composite":
        name = entry["metadata"]["source_dataset"]
        options = next(part["config"] for part in options["datasets"] if part["name"] == name)
    if name in EXAMPLE_CHECKS and not EXAMPLE_CHECKS[name](entry["metadata"]):
        entry["metadata"][EXAMPLES[name]] = None
    return inside.encode({"name": name, "options": _plain(options), "entry": entry})


def _is_conclusion(metadata: Mapping[str, Any]) -> bool:
    """Whether the example of propositional_logic follows from the premises, and is not one of them again."""
    from reasoning_gym.logic.propositional_logic import Expression, PropositionalLogicConfig, PropositionalLogicDataset

    follows = PropositionalLogicDataset(PropositionalLogicConfig(seed=0))._is_valid_conclusion
    premises = [Expression.from_string(premise) for premise in metadata["premises"]]
    example = Expression.from_string(metadata["example_answer"])
    restated = any(follows([example], premise) and follows([premise], example) for premise in premises)
    return bool(follows(premises, example)) and not restated


EXAMPLE_CHECKS = {"propositional_logic": _is_conclusion}  # whether an example is an answer: some are not


@cache
def _workers() -> Pool:
    return Pool(["reasoning_gym"])


def _part(part: Any) -> dict[str, Any]:
    """One part of a composite, with validated options."""
    if not isinstance(part, Mapping) or not isinstance(part.get("name"), str) or part["name"] == "composite":
        raise TaskError(f"reasoning_gym/composite: {part!r:.80} must be the name, weight and config of a generator")
    options = validate_options(part["name"], part.get("config") or {})
    return {"name": part["name"], "weight": part.get("weight", 1), "config": options}


def _config(name: str, options: Mapping[str, Any], seed: int) -> Any:
    if name == "composite":
        from reasoning_gym.composite import DatasetSpec

        options = {"datasets": [DatasetSpec(**part) for part in options["datasets"]]}
    return generators()[name](size=1, seed=seed, **options)


def _prompt(gym: dict[str, Any]) -> Prompt:
    """Identified by its question: the same problem has the same id, whichever seed generated it."""
    entry = gym["entry"]
    question = entry["question"].strip()
    name = f"{gym['name']}-{seed_of(question):016x}"
    message = {"role": "user", "content": f"{question}\n\n{INSTRUCTION}"}
    return Prompt(name, (message,), _gold(gym["name"], entry), {"gym": gym})


def _gold(name: str, entry: dict[str, Any]) -> str | None:
    """A correct answer, or None if the generator gives none."""
    gold = entry["answer"] if name not in EXAMPLES else entry["metadata"][EXAMPLES[name]] or None
    return gold if gold is None or isinstance(gold, str) else json.dumps(gold)


def _plain(value: Any) -> Any:
    """The value in builtin types only. Anything but a number, text or collection becomes text."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    for collection in (list, tuple, set, frozenset):
        if isinstance(value, collection):
            return collection([_plain(item) for item in value])
    if value is None or isinstance(value, (bool, bytes)):
        return value
    if isinstance(value, str):
        return "".join(value)  # str() of an Enum would be its name
    for number in (int, float):
        if isinstance(value, number):
            return number(value)
    return value.item() if hasattr(value, "item") else str(value)
