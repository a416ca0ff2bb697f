"""One prompt through the steps, and the prompts that gained most."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from outdo.dash.models import Improved, PromptGain, PromptPage, PromptStep
from outdo.runs.groups import LIST_CHARS, GroupStats, load_groups, mean_reward, prompt_text
from outdo.runs.index import AllGroups, GroupIndex, GroupReader, prompt_key, read_location
from outdo.runs.run_reader import RunReader
from outdo.runs.values import as_text

MAX_BEST_CHARS = 300
MAX_STEPS = 1000  # of one prompt, evenly chosen where there are more
MAX_PROMPTS = 20_000  # whose gain is measured
MAX_PROBLEMS = 20


def prompt_page(root: Path, index: GroupIndex, prompt_id: str) -> PromptPage | None:
    """Every step that sampled the prompt; None where no step did."""
    groups = index.all()
    indices = np.flatnonzero(groups.keys_N == prompt_key(prompt_id))
    problems = groups.problems()
    if len(indices) > MAX_STEPS:
        problems.append(f"the prompt was sampled {len(indices)} times: {MAX_STEPS} of them are shown")
        indices = indices[np.linspace(0, len(indices) - 1, MAX_STEPS).astype(np.int64)]
    steps: list[PromptStep] = []
    records, unread = load_groups(root, [groups.location(i) for i in indices.tolist()])
    records = [group for group in records if group.prompt_id == prompt_id]  # another may have the same key
    prompt = next((group.prompt for group in records if group.prompt), "")
    for group in records:
        graded = [answer for answer in group.answers if answer.reward is not None]
        best = max(graded, key=lambda answer: answer.reward or 0.0).text[:MAX_BEST_CHARS] if graded else ""
        same = group.model_dump(include=set(GroupStats.model_fields))
        steps.append(PromptStep(rewards=[answer.reward for answer in group.answers], best=best, **same))
    if not steps and not len(indices):
        return None
    steps.sort(key=lambda step: step.step)
    problems = [*problems, *unread][:MAX_PROBLEMS]
    return PromptPage(prompt_id=prompt_id, prompt=prompt[:LIST_CHARS], seen=steps, trouble=problems)


def improved_prompts(reader: RunReader, limit: int) -> Improved:
    """Prompts that were sampled at two steps or more, the largest gain first."""
    gains: Gains = reader.derived.setdefault("gains", Gains(reader.root, reader.groups))
    return gains.improved(limit)


class Gains:
    """Mean rewards of groups, cached: a recorded group does not change."""

    def __init__(self, root: Path, index: GroupIndex) -> None:
        self.root, self.index = root, index
        self._means: dict[tuple[int, int], float] = {}  # by step and key
        self._restarts = 0  # of the files when the means were read
        self._lock = threading.Lock()

    def improved(self, limit: int) -> Improved:
        with self._lock:
            groups = self.index.all()
            problems = groups.problems()
            pairs = first_and_last(groups)
            if len(pairs) > MAX_PROMPTS:
                problems.append(f"{len(pairs)} prompts were sampled twice or more: {MAX_PROMPTS} of them are measured")
                pairs = pairs[:MAX_PROMPTS]
            if groups.restarts != self._restarts or len(self._means) > 4 * MAX_PROMPTS:
                self._means.clear()
                self._restarts = groups.restarts
            means = self._read_means(sorted({index for pair in pairs for index in pair}), groups)
            gains = [(means[b] - means[a], a, b) for a, b in pairs if a in means and b in means]
            gains.sort(key=lambda gain: (-gain[0], gain[1]))
            prompts = [self._gain(groups, a, b, means) for _, a, b in gains[:limit]]
            return Improved(prompts=[gain for gain in prompts if gain], trouble=problems[:MAX_PROBLEMS])

    def _read_means(self, indices: list[int], groups: AllGroups) -> dict[int, float]:
        """The mean reward of each group, read in the order of the files."""
        means: dict[int, float] = {}
        with GroupReader(self.root) as reader:
            for index in indices:
                key = (int(groups.steps_N[index]), int(groups.keys_N[index]))
                mean = self._means.get(key)
                if mean is None:
                    with suppress(OSError, ValueError):
                        mean = mean_reward(reader.row(groups.location(index)))
                if mean is not None:
                    means[index] = self._means[key] = mean
        return means

    def _gain(self, groups: AllGroups, first: int, last: int, means: Mapping[int, float]) -> PromptGain | None:
        try:
            row = read_location(self.root, groups.location(last))
        except (OSError, ValueError):
            return None
        a, b = means[first], means[last]
        steps = {"first_step": int(groups.steps_N[first]), "last_step": int(groups.steps_N[last])}
        prompt_id = as_text(row.get("prompt_id"))
        return PromptGain(prompt_id=prompt_id, prompt=prompt_text(row), **steps, first_mean=a, last_mean=b, gain=b - a)


def first_and_last(groups: AllGroups) -> list[tuple[int, int]]:
    """The first and the last group of each prompt that was sampled at two steps or more."""
    if not len(groups.keys_N):
        return []
    order = np.lexsort((groups.steps_N, groups.keys_N))
    keys, steps = groups.keys_N[order], groups.steps_N[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    last = np.append(first[1:], len(keys)) - 1
    repeated = np.flatnonzero(steps[last] > steps[first])
    return list(zip(order[first[repeated]].tolist(), order[last[repeated]].tolist(), strict=True))
