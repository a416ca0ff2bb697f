"""One prompt through the steps, and the prompts that gained most."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from outdo.dash.answers import SHORT, mean_reward, prompt_of, read_groups
from outdo.dash.blocks import Index, Reader, Whole, key_of, read_place
from outdo.dash.files import text_of
from outdo.dash.shapes import Better, Improved, PromptPage, Seen

BEST = 300  # characters of the best answer
MOST_SEEN = 1000  # steps of one prompt that are shown, evenly taken where there are more
MOST_PROMPTS = 20_000  # whose gain is measured


def prompt_page(root: Path, index: Index, prompt_id: str) -> PromptPage | None:
    """Every step at which the prompt was asked; None where it never was."""
    whole = index.all()
    found = np.flatnonzero(whole.keys_N == key_of(prompt_id))
    trouble = whole.trouble()
    if len(found) > MOST_SEEN:
        trouble.append(f"it was asked {len(found)} times: {MOST_SEEN} of them are shown")
        found = found[np.linspace(0, len(found) - 1, MOST_SEEN).astype(np.int64)]
    seen: list[Seen] = []
    prompt = ""
    groups, wrong = read_groups(root, [whole.place(at) for at in found.tolist()])
    for group in groups:
        if group.prompt_id != prompt_id:  # another with the same key
            continue
        prompt = prompt or group.prompt
        paid = [answer for answer in group.answers if answer.reward is not None]
        best = max(paid, key=lambda answer: answer.reward or 0.0).text[:BEST] if paid else ""
        rewards = [answer.reward for answer in group.answers]
        told = group.model_dump(include={"step", "right", "wrong", "broken", "mean"})
        seen.append(Seen(rewards=rewards, best=best, **told))
    if not seen and not len(found):
        return None
    seen.sort(key=lambda one: one.step)
    return PromptPage(prompt_id=prompt_id, prompt=prompt[:SHORT], seen=seen, trouble=[*trouble, *wrong][:20])


class Gains:
    """Mean rewards of single groups, kept: a finished group does not change."""

    def __init__(self, root: Path, index: Index) -> None:
        self.root, self.index = root, index
        self._means: dict[tuple[int, int], float] = {}  # by step and key
        self._times = 0  # that files were begun again
        self._lock = threading.Lock()

    def improved(self, limit: int) -> Improved:
        """Prompts that were asked at least twice, those that gained most first."""
        with self._lock:
            whole = self.index.all()
            trouble = whole.trouble()
            ends = first_and_last(whole)
            if len(ends) > MOST_PROMPTS:
                trouble.append(f"{len(ends)} prompts were asked twice or more: {MOST_PROMPTS} of them are measured")
                ends = ends[:MOST_PROMPTS]
            if whole.times != self._times or len(self._means) > 4 * MOST_PROMPTS:
                self._means.clear()
                self._times = whole.times
            means = self._measured(sorted({at for pair in ends for at in pair}), whole)
            found = [(means[b] - means[a], a, b) for a, b in ends if a in means and b in means]
            found.sort(key=lambda one: (-one[0], one[1]))
            shown = [self._told(whole, a, b, means) for _, a, b in found[:limit]]
            return Improved(prompts=[one for one in shown if one], trouble=trouble[:20])

    def _measured(self, wanted: list[int], whole: Whole) -> dict[int, float]:
        """The mean reward of each group wanted, in the order of the files."""
        found: dict[int, float] = {}
        with Reader(self.root) as reader:
            for at in wanted:
                key = (int(whole.steps_N[at]), int(whole.keys_N[at]))
                known = self._means.get(key)
                if known is None:
                    with suppress(OSError, ValueError):
                        known = mean_reward(reader.row(whole.place(at)))
                if known is not None:
                    found[at] = self._means[key] = known
        return found

    def _told(self, whole: Whole, first: int, last: int, means: Mapping[int, float]) -> Better | None:
        try:
            row = read_place(self.root, whole.place(last))
        except (OSError, ValueError):
            return None
        a, b = means[first], means[last]
        steps = {"first_step": int(whole.steps_N[first]), "last_step": int(whole.steps_N[last])}
        prompt_id = text_of(row.get("prompt_id"))
        return Better(prompt_id=prompt_id, prompt=prompt_of(row), **steps, first_mean=a, last_mean=b, gain=b - a)


def first_and_last(whole: Whole) -> list[tuple[int, int]]:
    """Where each prompt that was asked at two steps or more was asked first and last."""
    if not len(whole.keys_N):
        return []
    order = np.lexsort((whole.steps_N, whole.keys_N))
    keys, steps = whole.keys_N[order], whole.steps_N[order]
    new = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    last = np.append(new[1:], len(keys)) - 1
    twice = np.flatnonzero(steps[last] > steps[new])
    return list(zip(order[new[twice]].tolist(), order[last[twice]].tolist(), strict=True))
