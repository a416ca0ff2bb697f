"""Code and addresses that a run's folder names. To open a folder is not to trust it: they are used only where the user
names them again, says `--trust`, or started that very run on this machine with the same files.

The last is known from a record outside the folder, in the user's own state folder, which nobody else can write: a
file for each run that was started with code of its own, with a hash of every file that it names.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo.errors import RecipeError
from outdo.recipe import plugins
from outdo.recipe.foreign import SYNONYMS
from outdo.recipe.forms import FORMS
from outdo.recipe.reward_names import canonical_reward
from outdo.recipe.schema import GROUPS
from outdo.untrusted.parse import parse_json, read_bounded

REWARD_KEYS = ("reward_funcs", "reward_gate", "audit_reward")
DATA_KEYS = ("dataset_name", "sft_dataset_name", "curriculum_dataset_name")
# Keys that may name a function, `file.py:function` or `module:function`.
CODE_KEYS = (*REWARD_KEYS, "callbacks", "tools", "environment_factory", "agent", *DATA_KEYS)
TOOLS_OF_PATHS = ("search",)  # built-in tools that are written with a path, `search:docs/`: that is no code
JUDGE = "llm_judge"  # a reward that sends answers to a server
JUDGE_KEYS = ("base_url", "api_key_env", "cache_dir")  # where they are sent, which key goes with them, what is written
BACKEND_KEYS = ("backend_python", "backend_args")  # a program that is started, and addresses among its settings
MAX_BYTES = 8 << 20  # of a file that is hashed, and of a record
MAX_RECORDS = 2000


@dataclass(frozen=True, order=True)
class CodeRef:
    """Something that a recipe names and that acts for itself: a function, a grader's file, an address."""

    key: str  # of the recipe
    name: str

    def __str__(self) -> str:
        return f"{self.key}={self.name}"

    @property
    def path(self) -> Path | None:
        """Its file, where it has one here."""
        if self.key not in CODE_KEYS:
            return None
        if self.name.endswith(".json"):
            return Path(self.name)
        return plugins.file_of(self.name)

    def same_file(self, other: CodeRef) -> bool:
        return self.path is not None and other.path is not None and self.path.resolve() == other.path.resolve()


def code_refs(recipe: Mapping[str, Any]) -> tuple[CodeRef, ...]:
    """All that a recipe names, whatever trainer's keys it uses; in its stages and its mixture too."""
    return tuple(sorted(set(_refs(recipe))))


def _refs(recipe: Mapping[str, Any]) -> Iterator[CodeRef]:
    pairs = list(_pairs(recipe))
    rewards: list[str] = []
    for key, value in pairs:
        if key in REWARD_KEYS:
            names = [canonical_reward(name) for name in names_of(value)]
            rewards += names
            yield from (CodeRef(key, name) for name in names if ":" in name or name.endswith(".json") or name == JUDGE)
        elif key in CODE_KEYS:
            names = [value] if key in DATA_KEYS and isinstance(value, str) else names_of(value)
            yield from (CodeRef(key, name) for name in names if ":" in name and not _is_path_of_tool(key, name))
        elif key == "reward_args" and isinstance(value, Mapping) and isinstance(value.get(JUDGE), Mapping):
            yield from (CodeRef(f"{key}.{JUDGE}.{k}", str(value[JUDGE][k])) for k in JUDGE_KEYS if k in value[JUDGE])
        elif key.startswith(f"reward_args.{JUDGE}."):
            yield CodeRef(key, str(value))
        elif key == "push_to_hub" and value not in (False, None):
            yield CodeRef(key, "true")
        elif key.partition(".")[0] in BACKEND_KEYS and value:
            yield CodeRef(key, value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str))
        elif key in ("stages", "dataset_mixture") and isinstance(value, (list, tuple, Mapping)):
            for inner in value.values() if isinstance(value, Mapping) else value:
                yield from _refs(inner) if isinstance(inner, Mapping) else ()


def _is_path_of_tool(key: str, name: str) -> bool:
    return key == "tools" and name.partition(":")[0] in TOOLS_OF_PATHS


def _pairs(recipe: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys by our names, with nested groups flat."""
    for key, value in recipe.items():
        if key in FORMS:
            with suppress(RecipeError, ValueError, TypeError, AttributeError):  # refused where it is loaded
                yield from FORMS[key](value, recipe, "")
        if key in GROUPS and isinstance(value, Mapping):
            yield from ((SYNONYMS.get(f"{key}_{inner}", f"{key}_{inner}"), each) for inner, each in value.items())
        yield SYNONYMS.get(str(key), str(key)), value


def names_of(value: Any) -> list[str]:
    """One name or several; a text may list them, and so may a mapping, as its values or, of arguments, as its keys."""
    if isinstance(value, Mapping):
        value = [each if isinstance(each, str) else name for name, each in value.items()]
    if isinstance(value, (list, tuple)):
        value = [name for one in value for name in (names_of(one) if isinstance(one, Mapping) else [one])]
    values = value if isinstance(value, (list, tuple)) else str(value or "").split(",")
    return [name.strip() for name in values if isinstance(name, str) and name.strip()]


def refuse_untrusted(
    folder: Path,
    recipe: Mapping[str, Any],
    given: Mapping[str, Any],
    command: str,
    *,
    trust: bool,
    force: bool = False,
    has_hashes: bool = True,
) -> None:
    """Raises RecipeError where a folder's recipe names what the user has not named among the `given` keys and this
    user has not run in that folder before. `command` is the one to repeat. `force` accepts a file that has changed;
    so does a run of before it recorded its rewards' hashes, unless the file lies in its folder."""
    if trust:
        return
    named = code_refs(given)
    missing = [ref for ref in code_refs(recipe) if not is_named(ref, named)]
    if not missing:
        return
    known = _record(folder)
    foreign = [ref for ref in missing if str(ref) not in known]
    if foreign:
        again = " ".join(f"{key}={_listed(names)}" for key, names in _by_key(foreign).items())
        raise RecipeError(
            f"{folder} names code or addresses that you did not start it with here: {', '.join(map(str, foreign))}. "
            f"Nothing of it was run. Look at it first. If you trust it: {command} --trust; or name it again: "
            f"{command} {again}"
        )
    changed = {ref: ref.path for ref in missing if ref.path and known[str(ref)] not in ("", _content(ref))}
    inner = os.path.realpath(folder)
    files = [path for path in changed.values() if has_hashes or os.path.realpath(path).startswith(inner + os.sep)]
    if files and not force:
        what = "; ".join(f"the reward file {path} has changed" for path in dict.fromkeys(files))
        raise RecipeError(
            f"{folder} cannot be resumed: {what}, and was not run. Restore it, or start a new run; --force resumes all "
            "the same"
        )


def is_named(ref: CodeRef, named: Iterable[CodeRef]) -> bool:
    """Whether the user has named it, under any key of code, or another function of its file."""

    def same(one: CodeRef) -> bool:
        return ref.name == one.name and (ref.key == one.key or {ref.key, one.key} <= {*CODE_KEYS})

    return any(same(one) or ref.same_file(one) for one in named)


def is_known(folder: Path, refs: Iterable[CodeRef]) -> bool:
    """Whether this user has run all of it in that folder, with the same files."""
    known = _record(folder)
    return all(known.get(str(ref)) in ("", _content(ref)) for ref in refs)


def remember(folder: Path, recipe: Mapping[str, Any]) -> str:
    """Records that this user runs what the recipe names, in that folder. Returns why it could not, or nothing."""
    refs = code_refs(recipe)
    if not refs:
        return ""
    path = _record_path(folder)
    content = {"folder": os.path.realpath(folder), "names": {str(ref): _content(ref) for ref in refs}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _prune(path.parent)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(temporary, path)
    except OSError as error:
        return f"this run cannot be remembered as yours ({error}): resuming it will need --trust"
    return ""


def _by_key(refs: Iterable[CodeRef]) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for ref in refs:
        keys.setdefault(ref.key, []).append(ref.name)
    return keys


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"[{','.join(names)}]"


def _content(ref: CodeRef) -> str:
    """A hash of its file; empty where it has none. What the file imports is not looked into."""
    path = ref.path
    if path is None or not path.is_file():
        return ""
    try:
        return hashlib.blake2b(read_bounded(path, MAX_BYTES), digest_size=16).hexdigest()
    except (OSError, ValueError):
        return "unreadable"


def _record_path(folder: Path) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    name = hashlib.blake2b(os.fsencode(os.path.realpath(folder)), digest_size=20).hexdigest()
    return Path(state, "outdo", "trusted", f"{name}.json")


def _record(folder: Path) -> dict[str, str]:
    """What this user has run in that folder, with the hashes; nothing where others could have written it."""
    path = _record_path(folder)
    try:
        for place in (path.parent, path):
            status = os.lstat(place)
            if status.st_uid != os.geteuid() or status.st_mode & 0o022 or stat.S_ISLNK(status.st_mode):
                return {}
        record = parse_json(read_bounded(path, MAX_BYTES).decode("utf-8"))
        same = record["folder"] == os.path.realpath(folder)
        return {str(ref): str(content) for ref, content in record["names"].items()} if same else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _prune(records: Path) -> None:
    """Removes the oldest, where there are very many."""
    files = sorted(records.glob("*.json"), key=lambda file: file.stat().st_mtime)
    for file in files[:-MAX_RECORDS]:
        file.unlink(missing_ok=True)
