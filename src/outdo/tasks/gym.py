"""Every generator of reasoning-gym as a task: `reasoning_gym/NAME`, with the generator's own options.

Problems are made in processes of their own. One that hangs is cut off there, and Python's sets, which several
generators draw from, have the same order in every run. Each problem has a hashed seed of its own, because the library's
(`seed + index`) overlap between neighbours; its split is decided by the hash of its question.

Not covered: generators differ in speed, and of ten problems one is held out, so a large test set of a slow one
(knight_swap, futoshiki) takes minutes to make.
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

ASK = "Give only your final answer, between <answer> and </answer>."
SECONDS = 30.0  # for making one problem
MISSES = 300  # problems in a row of the other split: this one has none
FAILURES = 8  # problems in a row that could not be made
AT_ONCE = 16  # problems that are made side by side

# Where a generator gives no answer of its own but an example of one. Others of them give none at all.
EXAMPLES = {
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",  # of cubes of size 3 only
}
NO_GOLD = {
    "boxnet": "many plans are right and the generator makes none",
    "rush_hour": "the puzzles come from a list without solutions",
}


def prompts(split: str, seed: int, /, name: str = "", **options: Any) -> Iterator[Prompt]:
    """Endless problems; ends where the split has none. `name` is the generator's, `options` its configuration's."""
    options = checked(name, options)
    index, batch, missed, failed = 0, 1, 0, 0
    while missed < MISSES:
        seeds = [seed_of("reasoning_gym", name, split, seed, index + i) % 2**32 for i in range(batch)]
        for reply in _makers().run([("outdo.tasks.gym:make", (name, options, s)) for s in seeds], SECONDS):
            if reply.kind != "value":
                failed += 1
                if failed == FAILURES:
                    raise TaskError(f"reasoning_gym/{name} made none of {failed} problems in a row: {reply.message}")
                continue
            failed = 0
            prompt = _prompt(inside.decode(json.loads(reply.value)))
            missed = 0 if belongs(prompt.id, split) else missed + 1
            if not missed:
                yield prompt
        index, batch = index + batch, min(2 * batch, AT_ONCE)


def teacher(prompt: Prompt, rng: random.Random) -> str | None:
    """The answer in its form, and nothing else; None where the generator gives none."""
    return None if prompt.answer is None else f"<answer>{prompt.answer}</answer>"


def checked(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the generator takes them. Raises TaskError for a name or an option that it does not know."""
    known = generators()
    if name not in known:
        meant = did_you_mean(name, known, "did you mean reasoning_gym/{}? ")
        raise TaskError(f"reasoning_gym has no generator {name!r}: {meant}It has {', '.join(known)}")
    fields = {field.name: field for field in dataclasses.fields(known[name]) if field.name not in ("seed", "size")}
    for key in options:
        if key not in fields:
            meant = did_you_mean(key, fields, "did you mean {!r}? ")
            takes = f"It takes {', '.join(fields)}" if fields else "It takes none"
            raise TaskError(f"reasoning_gym/{name} has no option {key!r}: {meant}{takes}")
    made = {
        key: tuple(value) if isinstance(value, list) and isinstance(fields[key].default, tuple) else value
        for key, value in options.items()
    }
    if name == "composite":
        made["datasets"] = [_part(part) for part in made.get("datasets") or []]
    try:
        config = _config(name, made, 0)
        getattr(config, "validate", lambda: None)()
    except Exception as error:  # asserts, mostly, of the generator's own
        raise TaskError(f"reasoning_gym/{name} refuses {dict(options)}: {error or type(error).__name__}") from None
    return made


@cache
def generators() -> dict[str, Any]:
    """The configuration class of every generator, by name. Raises TaskError where reasoning-gym is not installed."""
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise TaskError(f"reasoning_gym/… needs reasoning-gym ({error}): pip install 'outdo[gym]'") from None
    return {name: config for name, (_, config) in sorted(DATASETS.items())}


def make(name: str, options: Mapping[str, Any], seed: int) -> str:
    """One problem, with what judges it, as tagged JSON. Runs in a process of `_makers`."""
    import numpy as np
    from reasoning_gym.factory import DATASETS

    random.seed(seed)  # a few generators draw from these
    np.random.seed(seed)
    with contextlib.redirect_stdout(io.StringIO()):
        entry = DATASETS[name][0](_config(name, options, seed))[0]
    entry = _plain({key: entry[key] for key in ("question", "answer", "metadata")})
    if name == "composite":
        name = entry["metadata"]["source_dataset"]
        options = next(part["config"] for part in options["datasets"] if part["name"] == name)
    return inside.encode({"name": name, "options": _plain(options), "entry": entry})


@cache
def _makers() -> Pool:
    return Pool(["reasoning_gym"])


def _part(part: Any) -> dict[str, Any]:
    """One of a composite's parts, with its options checked."""
    if not isinstance(part, Mapping) or not isinstance(part.get("name"), str) or part["name"] == "composite":
        raise TaskError(f"reasoning_gym/composite: {part!r:.80} is none of name, weight and config of a generator")
    return {
        "name": part["name"],
        "weight": part.get("weight", 1),
        "config": checked(part["name"], part.get("config") or {}),
    }


def _config(name: str, options: Mapping[str, Any], seed: int) -> Any:
    if name == "composite":
        from reasoning_gym.composite import DatasetSpec

        options = {"datasets": [DatasetSpec(**part) for part in options["datasets"]]}
    return generators()[name](size=1, seed=seed, **options)


def _prompt(gym: dict[str, Any]) -> Prompt:
    """Named by its question: the same one has the same name, whichever seed made it."""
    entry = gym["entry"]
    question = entry["question"].strip()
    name = f"{gym['name']}-{seed_of(question):016x}"
    return Prompt(name, ({"role": "user", "content": f"{question}\n\n{ASK}"},), _gold(gym["name"], entry), {"gym": gym})


def _gold(name: str, entry: dict[str, Any]) -> str | None:
    """An answer that is right, where the generator gives one."""
    gold = entry["answer"] if name not in EXAMPLES else entry["metadata"][EXAMPLES[name]] or None
    return gold if gold is None or isinstance(gold, str) else json.dumps(gold)


def _plain(value: Any) -> Any:
    """The same of builtin types only. What is neither a number, text nor a collection becomes text."""
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
