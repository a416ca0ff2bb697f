"""GRPO in one file: torch and the standard library, nothing else. Read it from top to bottom.

    python examples/one_file.py                         warm up, then learn from a reward; about a minute on a laptop
    python examples/one_file.py --mode eval             warm up, then only measure
    python examples/one_file.py --reward dense          partial credit for each right digit
    python examples/one_file.py --reward hackable       a reward with a loophole

What it shows. A small transformer, written out by hand, first imitates a careless teacher that adds two numbers but
mostly forgets to carry, and sometimes writes two guesses instead of one answer. Then GRPO takes over: for each problem
it samples a group of answers, scores each with a program, and makes those that beat their siblings more likely. No
answer key is ever shown to the model, no critic is trained.

What you should see. With `exact`, success on problems never trained on goes from about 0.3 to above 0.9. With
`hackable`, the reward climbs to about 1 and success falls to about 0: the model has learned to list several guesses,
because that reward pays for the right number anywhere in the text. That is reward hacking, and only the column
`success` tells. With `--warmup 0` nothing is ever right, no group is informative, and nothing is learned.

What it leaves out: a key-value cache, prompts of different lengths, micro-batches, other variants of the loss,
checkpoints, real language models. The package beside this file has them; its maths gives the same numbers.

Axes: N = P prompts x G answers each (a group's answers stand side by side), B rows, T answer tokens, L prompt and
answer tokens, V vocabulary, D width, H heads.
"""

import argparse
import copy
import hashlib
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# ---------------------------------------------------------------------------------------------------------------------
# The task: two-digit sums. Every prompt has six characters, so nothing needs padding on the left.

END = "."
VOCAB = "0123456789+=," + END
PROMPT_LEN = len("12+34=")
ANSWER_LEN = 8  # room for two guesses, "125,115."
Problem = tuple[int, int]


def is_held_out(problem: Problem) -> bool:
    """Decided by the problem itself, whatever the seed, so the two sides never meet. a+b and b+a count as one."""
    return hashlib.sha256(f"{min(problem)}+{max(problem)}".encode()).digest()[0] % 10 == 0


PROBLEMS = [(a, b) for a in range(10, 100) for b in range(10, 100)]
TRAIN = [problem for problem in PROBLEMS if not is_held_out(problem)]
HELD_OUT = [problem for problem in PROBLEMS if is_held_out(problem)]


def careless_sum(problem: Problem) -> int:
    """Column by column, every carry forgotten: 57+68 gives 15."""
    (a, b) = problem
    return (a // 10 + b // 10) % 10 * 10 + (a + b) % 10


def teacher(problem: Problem, rng: random.Random, forgets: float = 0.75, hedges: float = 0.2) -> str:
    """A demonstration to imitate: the right form, mostly the wrong number, now and then two guesses."""
    right, careless = str(sum(problem)), str(careless_sum(problem))
    guesses = [careless, right] if rng.random() < forgets else [right, careless]
    return (",".join(guesses) if rng.random() < hedges else guesses[0]) + END


def encode(texts: Sequence[str]) -> Tensor:
    return torch.tensor([[VOCAB.index(c) for c in text] for text in texts])


def decode(tokens_BT: Tensor) -> list[str]:
    """Each row up to its end sign, or all of it where the sign is missing."""
    return ["".join(VOCAB[i] for i in row).partition(END)[0] for row in tokens_BT.tolist()]


def prompts_of(problems: Sequence[Problem]) -> Tensor:
    return encode([f"{a}+{b}=" for a, b in problems])


# ---------------------------------------------------------------------------------------------------------------------
# Rewards: plain functions from a problem and a text to a number. `exact` is also how success is measured, always.


def exact(problem: Problem, text: str) -> float:
    """One number, the right one, nothing else."""
    return float(text == str(sum(problem)))


def dense(problem: Problem, text: str) -> float:
    """The share of characters that stand where they should; extra ones lower it. Says "warmer" before "right"."""
    answer = str(sum(problem))
    return sum(x == y for x, y in zip(text, answer, strict=False)) / max(len(text), len(answer))


def hackable(problem: Problem, text: str) -> float:
    """Looks reasonable and is not: whoever lists many numbers is paid if one of them is right."""
    return float(str(sum(problem)) in text)


REWARDS: dict[str, Callable[[Problem, str], float]] = {"exact": exact, "dense": dense, "hackable": hackable}

# ---------------------------------------------------------------------------------------------------------------------
# The model: a decoder with pre-norm blocks and learned positions.


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x_BLD: Tensor) -> Tensor:
        B, L, D = x_BLD.shape
        q, k, v = self.qkv(self.norm1(x_BLD)).view(B, L, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        mixed_BHLd = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BLD = x_BLD + self.out(mixed_BHLd.transpose(1, 2).reshape(B, L, D))
        return x_BLD + self.mlp(self.norm2(x_BLD))


class Transformer(nn.Module):
    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.token = nn.Embedding(len(VOCAB), width)
        self.position = nn.Embedding(PROMPT_LEN + ANSWER_LEN, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, len(VOCAB), bias=False)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        x_BLD = self.token(tokens_BL) + self.position.weight[: tokens_BL.shape[1]]
        return self.head(self.norm(self.blocks(x_BLD)))


def answer_logprobs(model: nn.Module, tokens_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the answer's tokens, and the entropy where each was chosen, both [B, T]."""
    logits_BTV = model(tokens_BL[:, :-1])[:, PROMPT_LEN - 1 :]
    all_BTV = logits_BTV.log_softmax(-1)
    logprobs_BT = all_BTV.gather(-1, tokens_BL[:, PROMPT_LEN:, None])[..., 0]
    return logprobs_BT, -(all_BTV.exp() * all_BTV).sum(-1).detach()


# ---------------------------------------------------------------------------------------------------------------------
# Sampling.


@dataclass(frozen=True)
class Samples:
    tokens_BL: Tensor  # prompt and answer
    mask_BT: Tensor  # 1 for the answer's tokens up to and with its end sign
    logprobs_BT: Tensor  # as they were when sampled: the "old" policy of the ratio
    texts: list[str]


@torch.no_grad()
def sample(model: nn.Module, problems: Sequence[Problem], group_size: int = 1, greedy: bool = False) -> Samples:
    """`group_size` answers to each problem, a group's side by side."""
    tokens_BL = prompts_of(problems).repeat_interleave(group_size, dim=0)
    open_B = torch.ones(len(tokens_BL), dtype=torch.bool)
    masks, logprobs = [], []
    for _ in range(ANSWER_LEN):
        logprobs_BV = model(tokens_BL)[:, -1].log_softmax(-1)
        next_B1 = logprobs_BV.argmax(-1, keepdim=True) if greedy else logprobs_BV.exp().multinomial(1)
        tokens_BL = torch.cat([tokens_BL, next_B1], dim=1)
        logprobs.append(logprobs_BV.gather(1, next_B1))
        masks.append(open_B[:, None].float())
        open_B = open_B & (next_B1[:, 0] != VOCAB.index(END))
        if not open_B.any():
            break
    return Samples(tokens_BL, torch.cat(masks, 1), torch.cat(logprobs, 1), decode(tokens_BL[:, PROMPT_LEN:]))


# ---------------------------------------------------------------------------------------------------------------------
# The method.


def group_advantages(rewards_N: Tensor, group_size: int, eps: float = 1e-4) -> Tensor:
    """How much better each answer did than its siblings, in the group's standard deviations."""
    rewards_PG = rewards_N.view(-1, group_size)
    centred_PG = rewards_PG - rewards_PG.mean(1, keepdim=True)
    scaled_PG = centred_PG / (rewards_PG.std(1, keepdim=True, correction=0) + eps)
    # Equal rewards teach nothing. Rounding in the mean would leave a speck that the division by eps makes large.
    spread_P1 = rewards_PG.amax(1, keepdim=True) > rewards_PG.amin(1, keepdim=True)
    return torch.where(spread_P1, scaled_PG, 0.0).flatten()


def k3_kl(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """KL to the reference, estimated from the sampled tokens alone; never negative."""
    d = ref_logprobs - logprobs
    return (torch.expm1(d) - d).clamp(min=0.0)  # exp(d) - d - 1, without its rounding error near 0


def grpo_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    *,
    ref_logprobs_BT: Tensor,
    epsilon: float = 0.2,
    beta: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The loss, and the mean KL per token.

    Once a token's probability has moved by more than `epsilon` in the direction that its advantage asks for, its
    gradient is 0: one batch of samples can only carry so far. The minimum leaves the way back open.
    """
    ratio_BT = (logprobs_BT - old_logprobs_BT.detach()).exp()
    advantages_B1 = advantages_B[:, None]
    clipped_BT = ratio_BT.clamp(1 - epsilon, 1 + epsilon) * advantages_B1
    gain_BT = torch.minimum(ratio_BT * advantages_B1, clipped_BT)
    kl_BT = k3_kl(logprobs_BT, ref_logprobs_BT)
    loss_B = ((beta * kl_BT - gain_BT) * mask_BT).sum(1) / mask_BT.sum(1)  # each answer weighs the same
    return loss_B.mean(), (kl_BT * mask_BT).sum().detach() / mask_BT.sum()


# ---------------------------------------------------------------------------------------------------------------------
# Warm-up, training, evaluation.


def warm_up(model: nn.Module, steps: int, rng: random.Random, batch_size: int = 128, lr: float = 3e-3) -> None:
    """Imitates the teacher: without a first foothold every group is all wrong, and GRPO has nothing to prefer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1, i / 20) * (1 - i / (steps + 1)))
    for step in range(steps):
        problems = rng.choices(TRAIN, k=batch_size)
        answers = [teacher(problem, rng) for problem in problems]
        width = max(map(len, answers))
        tokens_BL = torch.cat([prompts_of(problems), encode([a.ljust(width, END) for a in answers])], dim=1)
        mask_BT = torch.tensor([[t < len(answer) for t in range(width)] for answer in answers]).float()
        logprobs_BT, _ = answer_logprobs(model, tokens_BL)
        loss = -(logprobs_BT * mask_BT).sum() / mask_BT.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 100 == 0:
            print(f"warm-up {step + 1}/{steps}  loss {loss.item():.3f}")


if __name__ == "__main__":
    import sys
    width, layers, steps, bs, lr = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    m = Transformer(width, layers)
    t = time.process_time()
    warm_up(m, steps, random.Random(0), bs, lr)
    print(time.process_time() - t)
    for greedy in (True, False):
        s = sample(m, HELD_OUT, 1, greedy)
        ok = [exact(p, x) for p, x in zip(HELD_OUT, s.texts)]
        from collections import Counter
        c = Counter("right" if x == str(sum(p)) else "careless" if x == str(careless_sum(p)) else "hedge" if sorted(x.split(",")) == sorted([str(sum(p)), str(careless_sum(p))]) else "other" for p, x in zip(HELD_OUT, s.texts))
        print(greedy, sum(ok) / len(ok), c)
