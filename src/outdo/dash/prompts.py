"""One prompt through the steps, and the prompts that gained most."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

from outdo.dash.answers import SHORT, mean_reward, prompt_of, read_groups
from outdo.dash.blocks import Block, Index, Place, Reader, joined, key_of, place_at, read_place, trouble_of
from outdo.dash.files import text_of
from outdo.dash.shapes import Better, Improved, PromptPage, Seen

BEST = 300  # characters of the best answer
MOST_SEEN = 1000  # steps of one prompt that are shown, evenly taken where there are more
MOST_PROMPTS = 20_000  # whose gain is measured


def prompt_page(root: Path, index: Index, prompt_id: str) -> PromptPage | None:
    """Every step at which the prompt was asked; None where it never was."""
    blocks = index.all()
    keys, _, begins = joined(blocks)
    found = np.flatnonzero(keys == key_of(prompt_id))
    trouble = trouble_of(blocks)
    if len(found) > MOST_SEEN:
        trouble.append(f"it was asked {len(found)} times: {MOST_SEEN} of them are shown")
        found = found[np.linspace(0, len(found) - 1, MOST_SEEN).astype(np.int64)]
    seen: list[Seen] = []
    prompt = ""
    groups, wrong = read_groups(root, [place_at(begins, at) for at in found.tolist()])
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
            blocks = self.index.all()
            keys, steps, begins = joined(blocks)
            trouble = trouble_of(blocks)
            order = np.lexsort((steps, keys))
            key_N, step_N = keys[order], steps[order]
            new = np.flatnonzero(np.append(True, key_N[1:] != key_N[:-1])) if len(keys) else np.zeros(0, np.int64)
            last = np.append(new[1:], len(keys)) - 1
            twice = np.flatnonzero(step_N[last] > step_N[new]) if len(keys) else new
            if len(twice) > MOST_PROMPTS:
                trouble.append(f"{len(twice)} prompts were asked twice or more: {MOST_PROMPTS} of them are measured")
                twice = twice[:MOST_PROMPTS]
            times = sum(block.times for block in blocks)
            if times != self._times or len(self._means) > 4 * MOST_PROMPTS:
                self._means.clear()
                self._times = times
            ends = [(int(order[new[i]]), int(order[last[i]])) for i in twice.tolist()]
            means = self._measured({at: int(keys[at]) for pair in ends for at in pair}, begins)
            found = [(means[b] - means[a], a, b) for a, b in ends if a in means and b in means]
            found.sort(key=lambda one: (-one[0], one[1]))
            shown = [
                self._told(place_at(begins, a), place_at(begins, b), means[a], means[b]) for _, a, b in found[:limit]
            ]
            return Improved(prompts=[one for one in shown if one], trouble=trouble[:20])

    def _measured(self, wanted: dict[int, int], begins: list[tuple[Block, int]]) -> dict[int, float]:
        """The mean reward of each group wanted, in the order of the files; `wanted` has their keys."""
        found: dict[int, float] = {}
        with Reader(self.root) as reader:
            for at in sorted(wanted):
                place = place_at(begins, at)
                known = self._means.get((place.step, wanted[at]))
                if known is None:
                    with suppress(OSError, ValueError):
                        known = mean_reward(reader.row(place))
                if known is not None:
                    found[at] = self._means[place.step, wanted[at]] = known
        return found

    def _told(self, first: Place, last: Place, a: float, b: float) -> Better | None:
        try:
            row = read_place(self.root, last)
        except (OSError, ValueError):
            return None
        told = {"prompt_id": text_of(row.get("prompt_id")), "prompt": prompt_of(row)}
        return Better(**told, first_step=first.step, last_step=last.step, first_mean=a, last_mean=b, gain=b - a)
