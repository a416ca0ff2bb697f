"""The batch of a loop of one's own: the forms that it may have, read into one.

Legend: B answers, groups adjacent; N tokens of prompt and answer; T = N - 1 predicted tokens, or those of the answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PROMPTS = ("inputs", "prompts", "prompt", "questions", "queries")  # names that a batch may have for its prompts …
ANSWERS = ("outputs", "completions", "completion", "responses", "answers")  # … and for the model's answers
MASKS = ("mask", "completion_mask", "response_mask", "output_mask")
TENSORS = ("input_ids", "attention_mask", "log_probs", "old_log_probs", "ref_log_probs", "advantages", *MASKS)


@dataclass(frozen=True)
class OwnBatch:
    """Either tokens, of which the model gives the log-probabilities, or those themselves."""

    size: int  # B
    input_ids_BN: Tensor | None
    attention_mask_BN: Tensor | None
    mask_BT: Tensor | None  # of the tokens that are trained on
    log_probs: Tensor | None  # with their gradient: [B, T], or [B]
    old_log_probs: Tensor | None  # when the answers were sampled
    ref_log_probs: Tensor | None
    prompts: Sequence[Any] | None  # one for each answer
    answers: Sequence[Any] | None


def read_batch(batch: Mapping[str, Any], group_size: int, tokenizer: Any = None) -> OwnBatch:
    """Raises ValueError where it has neither tokens nor log-probabilities, or a group mixes prompts."""
    prompts, answers = _first(batch, PROMPTS), _first(batch, ANSWERS)
    given, old = batch.get("log_probs"), batch.get("old_log_probs")
    log_probs = given if isinstance(given, Tensor) and given.requires_grad else None
    if log_probs is None and given is not None and old is None:
        old = torch.as_tensor(given)  # without a gradient they are the sampler's
    ids, attention, mask = batch.get("input_ids"), batch.get("attention_mask"), _first(batch, MASKS)
    if ids is not None:
        if mask is None:
            raise ValueError("the batch has input_ids and no completion_mask, which is 1 on the answers' tokens")
        size, mask = len(ids), mask[:, 1:]
    elif log_probs is not None:
        size = len(log_probs)
    else:
        ids, attention, mask, old = _join(prompts, answers, mask, old, group_size, tokenizer)
        size = len(ids)
    prompts = _one_each(prompts, size, group_size)
    return OwnBatch(size, ids, attention, mask, log_probs, old, batch.get("ref_log_probs"), prompts, answers)


def like_log_probs(
    read: OwnBatch, group_size: int, compute: Callable[[Tensor, Tensor | None], Tensor]
) -> Tensor | None:
    """What `compute` gives for ids and attention, [B, N - 1], in the layout of the batch's own log_probs: a number for
    each answer, or one for each of its tokens. None where the batch has no token ids.

    Raises ValueError where log_probs has too few columns."""
    own = read.log_probs
    assert own is not None
    per_answer = own.numel() == read.size
    if read.input_ids_BN is not None and read.mask_BT is not None:
        values_BT = compute(read.input_ids_BN, read.attention_mask_BN)
        return (values_BT * read.mask_BT).sum(1).reshape(own.shape) if per_answer else values_BT
    if read.prompts is None or read.answers is None or isinstance(read.answers[0], (str, Mapping)):
        return None
    mask = read.mask_BT if per_answer else None
    ids_BN, attention_BN, mask_BT, _ = _join(read.prompts, read.answers, mask, None, group_size, None)
    values_BT = compute(ids_BN, attention_BN)
    if per_answer:
        return (values_BT * mask_BT).sum(1).reshape(own.shape)
    if (width := int(mask_BT.sum(1).max())) > own.shape[1]:
        raise ValueError(f"log_probs has {own.shape[1]} columns, and the longest answer has {width} tokens")
    out = torch.zeros_like(own)
    for i, keep in enumerate(mask_BT.bool()):
        out[i, : int(keep.sum())] = values_BT[i, keep]
    return out


def _join(
    prompts: Any, answers: Any, mask: Tensor | None, old: Tensor | None, group_size: int, tokenizer: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Prompts and answers, as tokens or as texts, in one row each: ids, attention, mask and old log-probabilities."""
    if prompts is None or answers is None:
        raise ValueError(
            "the batch has nothing to learn from: give input_ids with completion_mask, or inputs and outputs, or "
            "log_probs with their gradient"
        )
    prompts = _one_each(prompts, len(answers), group_size)
    if any(isinstance(one, str) for one in (*prompts[:1], *answers[:1])):
        if tokenizer is None:
            raise ValueError(
                "inputs and outputs are texts, and log_probs have no gradient: pass GRPOTrainer(tokenizer=…), or "
                "log_probs as the model computes them, with their gradient, and the sampler's as old_log_probs"
            )
        end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
        prompts = [tokenizer.encode(text, add_special_tokens=False) for text in prompts]
        answers = [[*tokenizer.encode(text, add_special_tokens=False), *end] for text in answers]
    rows = [(list(map(int, p)), list(map(int, a))) for p, a in zip(prompts, answers, strict=True)]
    width = max(len(p) + len(a) for p, a in rows)
    device = answers.device if isinstance(answers, Tensor) else None
    ids_BN = torch.zeros(len(rows), width, dtype=torch.long, device=device)
    attention_BN, mask_BN = torch.zeros_like(ids_BN), torch.zeros_like(ids_BN)
    per_token = old is not None and old.ndim == 2 and old.shape[1] > 1
    old_BN = torch.zeros(ids_BN.shape, device=device) if per_token else None
    for i, (p, a) in enumerate(rows):
        n = len(p) + len(a)
        ids_BN[i, :n] = torch.tensor(p + a)
        attention_BN[i, :n] = 1
        mask_BN[i, len(p) : n] = 1 if mask is None else torch.as_tensor(mask[i][: len(a)])
        if old_BN is not None and old is not None:
            if old.shape[1] < len(a):
                raise ValueError(f"log_probs has {old.shape[1]} columns, and answer {i} has {len(a)} tokens")
            old_BN[i, len(p) : n] = old[i, : len(a)]
    return ids_BN, attention_BN, mask_BN[:, 1:], old if old_BN is None else old_BN[:, 1:]


def _one_each(prompts: Any, size: int, group_size: int) -> Sequence[Any] | None:
    """A prompt for each answer, given so or one for each group. Raises ValueError where a group mixes prompts."""
    if prompts is None or isinstance(prompts, str):
        return None if prompts is None else [prompts] * size
    if len(prompts) * group_size == size:
        return [prompts[i // group_size] for i in range(size)]
    if len(prompts) != size:
        raise ValueError(f"the batch has {len(prompts)} prompts for {size} answers in groups of {group_size}")
    keys = [one.tolist() if isinstance(one, Tensor) else one for one in prompts]
    for i, key in enumerate(keys):
        first = i - i % group_size
        if key != keys[first]:
            raise ValueError(
                f"answers {first} and {i} are in one group of {group_size} and have different prompts, "
                f"{keys[first]!r:.60} and {key!r:.60}: an answer is compared with others to the same prompt"
            )
    return list(prompts)


def call_reward(function: Callable[..., Any], batch: Mapping[str, Any], read: OwnBatch) -> list[float | None]:
    """The rewards of a function that takes what it names: `(completions, **columns)`, `(inputs, outputs)`, `(prompts,
    completions)`, or one or two parameters of any name: the answers, or the prompts and the answers."""
    columns = {key: value for key, value in batch.items() if key not in TENSORS}
    for names, values in ((PROMPTS, read.prompts), (ANSWERS, read.answers)):
        if values is not None:
            columns |= {name: values for name in names if name in columns}
    parameters = inspect.signature(function).parameters.values()
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    same = {**dict.fromkeys(PROMPTS, read.prompts), **dict.fromkeys(ANSWERS, read.answers)}
    known = {name: columns.get(name, same.get(name)) for name in named}
    arguments = {name: value for name, value in known.items() if value is not None}
    unknown = [p for name, p in named.items() if name not in arguments and p.default is p.empty]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        arguments |= {key: value for key, value in columns.items() if key not in arguments}
    if unknown:
        ours = [value for value in (read.prompts, read.answers) if value is not None][-len(unknown) :]
        if arguments or len(ours) < len(unknown):
            missing = ", ".join(p.name for p in unknown)
            raise ValueError(f"reward_fn takes {missing}, which the batch does not have; it has {', '.join(batch)}")
        rewards = function(*ours)
    else:
        rewards = function(**arguments)
    rewards = rewards.flatten().tolist() if hasattr(rewards, "tolist") else list(rewards)
    if len(rewards) != read.size:
        raise ValueError(f"reward_fn returned {len(rewards)} values for {read.size} answers")
    return rewards


def _first(batch: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((batch[name] for name in names if batch.get(name) is not None), None)
