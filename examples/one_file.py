"""GRPO in one file: torch and the standard library, nothing else. Read it from top to bottom.

    python examples/one_file.py                       SFT, then GRPO with a reward; about a minute on a laptop
    python examples/one_file.py --mode eval           SFT, then only evaluation
    python examples/one_file.py --reward dense        partial credit, digit by digit
    python examples/one_file.py --reward hackable --forgets 0.65 --hedges 0.35      a reward with a loophole
    python examples/one_file.py > log.jsonl; outdo doctor log.jsonl                 a diagnosis of its signals

What it shows. SFT first trains a small transformer on careless demonstrations: they add two numbers, forget to carry,
and sometimes write two guesses instead of one answer. Then GRPO samples a group of answers to each problem, scores each
answer with a program, and makes those more likely that score above their group's mean. No answer key, no critic. It
prints a JSON line for each step, with outdo's names of the signals.

What you should see.
    exact       success on problems never trained on rises from about 0.75 to about 0.95, with a KL of about 0.05.
    dense       the same; its reward starts higher, because a wrong answer often has a right digit.
    hackable    the reward rises above 0.95 and success falls to about 0.1: this reward pays for the right number
                anywhere in the text, so the model lists guesses. Judged by the reward alone, it learns to add.
    --warmup 0  with exact, no answer is ever right, no group is informative, nothing is learned: GRPO needs a start.

What it leaves out: a key-value cache, prompts of different lengths, micro-batches, other losses, checkpoints, language.
The outdo package has them, and its `group_advantages`, `k3_kl` and `grpo_loss` return the same numbers.

Axes: N = P prompts x G answers each, adjacent; B rows; T answer tokens; L all tokens; V vocabulary; D width.
"""

import argparse
import copy
import hashlib
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# --- The task: two-digit sums ---------------------------------------------------------------------------------------

Problem = tuple[int, int]
Reward = Callable[[Problem, str], float]
END = "."
VOCAB = "0123456789+=," + END
PROMPT_LEN = len("57+68=")  # the same for all prompts, so that none needs padding
ANSWER_LEN = len("115,125.")  # room for two guesses


def is_held_out(problem: Problem) -> bool:
    """A tenth of all problems, chosen by hash, so that they do not depend on a seed. a+b and b+a are one problem."""
    return hashlib.sha256(f"{min(problem)}+{max(problem)}".encode()).digest()[0] % 10 == 0


PROBLEMS = [(a, b) for a in range(10, 100) for b in range(10, 100)]
TRAIN = [problem for problem in PROBLEMS if not is_held_out(problem)]
HELD_OUT = [problem for problem in PROBLEMS if is_held_out(problem)]


def demonstrate(problem: Problem, rng: random.Random, forgets: float = 0.2, hedges: float = 0.1) -> str:
    """A careless demonstration: for 57+68 it is 15 without the carries, 125 with them, or both guesses."""
    a, b = problem
    right, careless = str(a + b), str((a // 10 + b // 10) % 10 * 10 + (a + b) % 10)
    first, second = (careless, right) if rng.random() < forgets else (right, careless)
    return f"{second},{first}" if rng.random() < hedges else first


def encode(problems: Sequence[Problem], answers: Sequence[str] | None = None) -> Tensor:
    """Prompts, or prompts and answers padded with end tokens."""
    lines = [f"{a}+{b}=" for a, b in problems]
    if answers is not None:  # right to left, as on paper: a carry comes before the digit that it changes
        lines = [line + answer[::-1].ljust(ANSWER_LEN, END) for line, answer in zip(lines, answers, strict=True)]
    return torch.tensor([[VOCAB.index(c) for c in line] for line in lines])


# --- Rewards: from a problem and a text to a number. Success is always `exact`, whichever reward is trained on ------
def exact(problem: Problem, text: str) -> float:
    """One number, the right one, and nothing else."""
    return float(text == str(sum(problem)))


def dense(problem: Problem, text: str) -> float:
    """The share of characters in the right position, counted from the last digit; extra characters lower it."""
    answer = str(sum(problem))
    return sum(x == y for x, y in zip(text[::-1], answer[::-1], strict=False)) / max(len(text), len(answer))


def hackable(problem: Problem, text: str) -> float:
    """Looks reasonable, but pays for a list of guesses if one of them is right."""
    return float(str(sum(problem)) in text)


REWARDS: dict[str, Reward] = {"exact": exact, "dense": dense, "hackable": hackable}


# --- The model: a decoder of two blocks, about 100,000 parameters ---------------------------------------------------
class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x_BLD: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x_BLD)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed_BLD = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x_BLD = x_BLD + self.out(mixed_BLD)
        return x_BLD + self.mlp(self.norm2(x_BLD))


class Transformer(nn.Module):
    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(len(VOCAB), width), nn.Embedding(PROMPT_LEN + ANSWER_LEN, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, len(VOCAB), bias=False)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        x_BLD = self.token(tokens_BL) + self.position.weight[: tokens_BL.shape[1]]
        return self.head(self.norm(self.blocks(x_BLD)))


def answer_logprobs(model: nn.Module, tokens_BL: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the answers' tokens, and the entropy at each of them, both [B, T]."""
    all_BTV = (model(tokens_BL[:, :-1])[:, PROMPT_LEN - 1 :] / temperature).log_softmax(-1)
    logprobs_BT = all_BTV.gather(-1, tokens_BL[:, PROMPT_LEN:, None])[..., 0]
    return logprobs_BT, -(all_BTV.exp() * all_BTV).sum(-1).detach()


# --- Sampling and scoring --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Samples:
    problems: list[Problem]  # one per answer
    texts: list[str]
    tokens_BL: Tensor
    logprobs_BT: Tensor  # under the policy that sampled them: the "old" policy after the first update
    mask_BT: Tensor  # 1 for an answer and its end token, 0 for tokens sampled after it


@torch.no_grad()
def sample(
    model: nn.Module,
    problems: Sequence[Problem],
    group_size: int = 1,
    greedy: bool = False,
    temperature: float = 1.0,
    length: int = ANSWER_LEN,
) -> Samples:
    """`group_size` answers of at most `length` tokens to each problem, adjacent."""
    repeated = [problem for problem in problems for _ in range(group_size)]
    tokens_BL, open_B1 = encode(repeated), torch.ones(len(repeated), 1, dtype=torch.bool)
    masks, logprobs = [], []
    while open_B1.any() and len(masks) < length:
        logprobs_BV = (model(tokens_BL)[:, -1] / temperature).log_softmax(-1)
        next_B1 = logprobs_BV.argmax(-1, keepdim=True) if greedy else logprobs_BV.exp().multinomial(1)
        tokens_BL = torch.cat([tokens_BL, next_B1], dim=1)
        logprobs.append(logprobs_BV.gather(1, next_B1))
        masks.append(open_B1.float())
        open_B1 = open_B1 & (next_B1 != VOCAB.index(END))
    lines = ["".join(VOCAB[i] for i in row) for row in tokens_BL[:, PROMPT_LEN:].tolist()]
    texts = [line.partition(END)[0][::-1] for line in lines]
    return Samples(repeated, texts, tokens_BL, torch.cat(logprobs, 1), torch.cat(masks, 1))


def score(reward: Reward, samples: Samples) -> Tensor:
    return torch.tensor([reward(*pair) for pair in zip(samples.problems, samples.texts, strict=True)])


# --- The method: three functions ------------------------------------------------------------------------------------
def group_advantages(rewards_N: Tensor, group_size: int, eps: float = 1e-4) -> Tensor:
    """How much better each answer scored than its group's mean, in units of the group's standard deviation."""
    rewards_PG = rewards_N.view(-1, group_size)
    centred_PG = rewards_PG - rewards_PG.mean(1, keepdim=True)
    advantages_PG = centred_PG / (rewards_PG.std(1, keepdim=True, correction=0) + eps)
    # Equal rewards give exactly 0: rounding of the mean leaves a tiny difference, which the division would enlarge.
    spread_P1 = rewards_PG.amax(1, keepdim=True) > rewards_PG.amin(1, keepdim=True)
    return torch.where(spread_P1, advantages_PG, 0.0).flatten()


def k3_kl(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """KL to the reference, estimated from the sampled tokens alone: exp(d) - d - 1, unbiased and never negative."""
    d = ref_logprobs - logprobs
    return (torch.expm1(d) - d).clamp(min=0.0)  # for small d, exp(d) - 1 would round to noise


def grpo_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    *,
    ref_logprobs_BT: Tensor,
    epsilon: float = 0.2,
    beta: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, and means over tokens: KL, and the share that is clipped. No row of the mask may be empty.

    A token whose ratio has moved by `epsilon` in the direction of its advantage has no gradient, which limits how far
    one batch moves the policy. Tokens that moved the other way keep their gradient, because of the minimum.
    """
    ratio_BT = (logprobs_BT - old_logprobs_BT.detach()).exp()
    bounded_BT = ratio_BT.clamp(1 - epsilon, 1 + epsilon)
    free_BT, clipped_BT = ratio_BT * advantages_B[:, None], bounded_BT * advantages_B[:, None]
    gain_BT = torch.minimum(free_BT, clipped_BT)
    kl_BT = k3_kl(logprobs_BT, ref_logprobs_BT)
    loss_B = ((beta * kl_BT - gain_BT) * mask_BT).sum(1) / mask_BT.sum(1)  # every answer weighs the same, long or short
    return loss_B.mean(), {"kl": token_mean(kl_BT, mask_BT), "clipfrac": token_mean(clipped_BT < free_BT, mask_BT)}


def token_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return (values_BT * mask_BT).sum().detach() / mask_BT.sum()


# --- Warm-up, training, evaluation ----------------------------------------------------------------------------------
def descend(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    """One step. Returns the norm of the gradient."""
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return norm


def warm_up(model: nn.Module, rng: random.Random, args: argparse.Namespace, lr: float = 8e-3) -> None:
    """SFT, in place; the loss covers only the answer's tokens and one end token."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    for step in range(args.warmup):
        optimizer.param_groups[0]["lr"] = lr * min(1, (step + 1) / 20) * (1 - step / args.warmup)
        problems = rng.choices(TRAIN, k=64)
        answers = [demonstrate(problem, rng, args.forgets, args.hedges) for problem in problems]
        logprobs_BT, _ = answer_logprobs(model, encode(problems, answers))
        mask_BT = torch.arange(ANSWER_LEN) <= torch.tensor([[len(answer)] for answer in answers])
        descend(model, optimizer, -logprobs_BT[mask_BT].mean())


def train(model: nn.Module, rng: random.Random, args: argparse.Namespace) -> None:
    """GRPO, in place: sample groups, score the answers, compute advantages, make a few small updates, repeat."""
    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    limits = {"temperature": args.temperature, "length": args.length}
    for step in range(1, args.steps + 1):
        samples = sample(model, rng.choices(TRAIN, k=args.prompts), args.group_size, **limits)
        old_NT, mask_NT, rewards_N = samples.logprobs_BT, samples.mask_BT, score(REWARDS[args.reward], samples)
        advantages_N = group_advantages(rewards_N, args.group_size)
        ref_NT, _ = answer_logprobs(reference, samples.tokens_BL, args.temperature)
        for _ in range(args.epochs):  # in the first the ratio is 1; the clip matters from the second on
            new_NT, entropy_NT = answer_logprobs(model, samples.tokens_BL, args.temperature)
            bounds = {"epsilon": args.epsilon, "beta": args.beta}
            loss, stats = grpo_loss(new_NT, old_NT, advantages_N, mask_NT, ref_logprobs_BT=ref_NT, **bounds)
            norm = descend(model, optimizer, loss)
        row = {
            "reward_mean": rewards_N.mean(),
            "success_rate": score(exact, samples).mean(),
            "kl_mean": stats["kl"],
            "entropy_mean": token_mean(entropy_NT, mask_NT),
            "clipfrac": stats["clipfrac"],
            "informative": advantages_N.view(-1, args.group_size).any(1).float().mean(),
            "adv_std": advantages_N.std(correction=0),
            "group_diversity": diversity(samples.texts, args.group_size),
            "len_mean": mask_NT.sum(1).mean(),
            "loss": loss.detach(),
            "grad_norm": norm,
        }
        rounded = {name: round(float(value), 4) for name, value in row.items()}
        print(json.dumps({"step": step, **rounded, "lr": args.lr, "beta": args.beta}), flush=True)


def diversity(texts: Sequence[str], group_size: int) -> float:
    """The share of answers that differ within their group, over all groups."""
    groups = [texts[i : i + group_size] for i in range(0, len(texts), group_size)]
    return sum(len(set(group)) for group in groups) / len(texts)


def evaluate(model: nn.Module, args: argparse.Namespace) -> dict[str, str]:
    """On all held-out problems: the reward that is trained on, success, entropy, and a few sampled answers."""
    limits = {"temperature": args.temperature, "length": args.length}
    greedy, sampled = sample(model, HELD_OUT, greedy=True, **limits), sample(model, HELD_OUT, **limits)
    shown = {f"{a}+{b}": text for (a, b), text in zip(HELD_OUT[::150], sampled.texts[::150], strict=True)}
    with torch.no_grad():
        _, entropy_BT = answer_logprobs(model, sampled.tokens_BL, args.temperature)
    numbers = {
        "reward, sampled": score(REWARDS[args.reward], sampled).mean(),
        "success, sampled": score(exact, sampled).mean(),
        "success, greedy": score(exact, greedy).mean(),
        "entropy": token_mean(entropy_BT, sampled.mask_BT),
    }
    return {name: f"{value:.3f}" for name, value in numbers.items()} | shown


def report(line: str) -> None:
    """For people: standard output has the JSON lines alone."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("train", "eval"), default="train")
    parser.add_argument("--reward", choices=tuple(REWARDS), default="exact")
    parser.add_argument("--warmup", type=int, default=800, help="steps of SFT")
    parser.add_argument("--forgets", type=float, default=0.2, help="share of demonstrations that forget to carry")
    parser.add_argument("--hedges", type=float, default=0.1, help="share of demonstrations with two guesses")
    parser.add_argument("--steps", type=int, default=40, help="steps of GRPO")
    parser.add_argument("--prompts", type=int, default=32, help="problems per step")
    parser.add_argument("--group-size", type=int, default=8, help="answers per problem")
    parser.add_argument("--epochs", type=int, default=2, help="updates per batch of answers")
    parser.add_argument("--lr", type=float, default=2e-4, help="learning rate of GRPO")
    parser.add_argument(
        "--epsilon", type=float, default=0.2, help="the ratio is clipped at 1 - epsilon and 1 + epsilon"
    )
    parser.add_argument("--beta", type=float, default=0.2, help="coefficient of the KL to the model after the warm-up")
    parser.add_argument("--temperature", type=float, default=1.0, help="of sampling, and of the policy that is trained")
    parser.add_argument("--length", type=int, default=ANSWER_LEN, help="tokens per answer")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.warmup < 0 or args.group_size < 2 or min(args.steps, args.prompts, args.epochs) < 1:
        parser.error("--group-size must be 2 or more, --warmup 0 or more, --steps, --prompts and --epochs 1 or more")
    if min(args.temperature, args.epsilon, args.lr) <= 0 or args.beta < 0:
        parser.error("--temperature, --epsilon and --lr must be above 0, --beta 0 or more")
    if not 1 <= args.length <= ANSWER_LEN or not 0 <= args.forgets <= 1 or not 0 <= args.hedges <= 1:
        parser.error(f"--length must be from 1 to {ANSWER_LEN}, --forgets and --hedges from 0 to 1")

    torch.set_num_threads(1)  # at this size threads cost more than they gain
    torch.manual_seed(args.seed)
    model, rng, start = Transformer(), random.Random(args.seed), time.perf_counter()
    report(f"{len(TRAIN)} problems to train on, {len(HELD_OUT)} held out; warm-up of {args.warmup} steps")
    warm_up(model, rng, args)
    before = after = evaluate(model, args)
    if args.mode == "train":
        train(model, rng, args)
        after = evaluate(model, args)
    report(f"held out, --reward {args.reward}{', before -> after' if args.mode == 'train' else ''}")
    for name, value in before.items():
        report(f"  {name:18}" + (f"{value:8} -> {after[name]}" if args.mode == "train" else value))
    report(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
