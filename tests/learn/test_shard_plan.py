"""Bytes, bytes sent and seconds of a launch, against numbers computed by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outdo.errors import ModelError, RecipeError
from outdo.learn import shard_plan
from outdo.learn.shard_plan import all_plans, pick_sharding, plan_for, rank_bytes, refuse_unfit, with_sharding
from outdo.learn.traffic import estimate_step, micro_batches, step_transfers
from outdo.models.load import load_policy
from outdo.models.shape import ModelShape
from outdo.parallel.clusters import parse_cluster
from outdo.parallel.launch import Launch
from outdo.parallel.world import World
from outdo.recipe.schema import Recipe
from support.basics import ROOT

# Qwen2.5-7B: 28 layers of 3584, 4 heads of keys of 128.
BIG = ModelShape(7_615_616_512, 28, 3584, 18944, 3584, 512, 152_064, 32_768)
MIDDLE = ModelShape(1_543_714_304, 28, 1536, 8960, 1536, 256, 151_936, 32_768)  # Qwen2.5-1.5B
N = BIG.parameters
GB = 10**9


def recipe_of(**keys: object) -> Recipe:
    defaults = {"dtype": "bfloat16", "per_device_train_batch_size": 512, "max_completion_length": 1024}
    return Recipe(**{**defaults, **keys})  # type: ignore[arg-type]


def test_none_holds_eighteen_bytes_a_weight() -> None:
    held = rank_bytes(recipe_of(), BIG, "none", 1)
    of_a_layer = 2 * N // 28  # before it is added to the sums
    expected = {"weights": 2 * N, "masters": 4 * N, "gradients": 4 * N + of_a_layer, "optimizer": 8 * N}
    assert {name: count for name, count in held.items() if count} == expected
    assert rank_bytes(recipe_of(), BIG, "none", 1, 8) == held


def test_grads_splits_all_but_the_model() -> None:
    held = rank_bytes(recipe_of(beta=0.1), BIG, "grads", 8)
    assert held["weights"] == 2 * N and held["reference"] == 2 * N
    assert held["masters"] == N // 2 and held["optimizer"] == N
    assert held["gradients"] == N // 2 + 8 * 2**24 + 2 * N // 28  # a part of the sums, a bucket, a layer


def test_full_splits_the_model_and_keeps_a_copy_for_the_sampler() -> None:
    held = rank_bytes(recipe_of(beta=0.1), BIG, "full", 8)
    assert "weights" not in held and held["sampler's copy"] == 2 * N
    assert held["masters"] == held["gradients"] == N // 2 and held["optimizer"] == N
    assert held["reference"] == 2 * N
    embedding = 152_064 * 3584
    layer = (N - embedding) // 28
    assert held["gathered layers"] == 2 * (embedding + 2 * layer) + 4 * embedding


def test_float32_is_its_own_master_where_it_is_whole() -> None:
    assert rank_bytes(recipe_of(dtype="float32"), BIG, "none", 1)["masters"] == 0
    assert rank_bytes(recipe_of(dtype="float32"), BIG, "grads", 4)["masters"] == N
    assert rank_bytes(recipe_of(dtype="float32"), BIG, "full", 4)["masters"] == N


@pytest.mark.parametrize(
    ("gpus", "memory", "picked"),
    [(8, 80, "grads"), (8, 141, "grads"), (8, 48, "grads"), (8, 200, "none"), (2, 141, "grads"), (64, 32, "grads")],
)
def test_auto_takes_the_first_that_fits(gpus: int, memory: int, picked: str) -> None:
    plan = pick_sharding(recipe_of(), BIG, gpus, memory * GB)
    assert (plan.sharding, plan.fits) == (picked, True)
    assert plan.total <= memory * GB


def test_one_h100_fits_none_and_says_what_would() -> None:
    plan = pick_sharding(recipe_of(), BIG, 1, 80 * GB)
    assert plan.sharding == "none" and not plan.fits and plan.least > 18 * N
    with pytest.raises(ModelError) as caught:
        refuse_unfit(recipe_of(), BIG, 1, 80 * GB)
    assert "4 processes are enough" in str(caught.value) and "use_peft=true" in str(caught.value)


def test_unknown_memory_fits() -> None:
    assert pick_sharding(recipe_of(), BIG, 8, None).sharding == "none"


def test_what_is_chosen_is_not_replaced() -> None:
    (plan,) = all_plans(recipe_of(parallel_sharding="none"), BIG, 8, 80 * GB)
    assert plan.sharding == "none" and plan.missing > 60 * GB


def test_offload_moves_bytes_to_the_host() -> None:
    plan = pick_sharding(recipe_of(parallel_offload="optimizer", parallel_sharding="grads"), BIG, 8, 80 * GB)
    assert plan.host_bytes == {"masters": N // 2, "optimizer": N} and "masters" not in plan.bytes_by_part
    plan = pick_sharding(recipe_of(parallel_offload="parameters", parallel_sharding="full"), BIG, 8, 80 * GB)
    assert plan.host_bytes == {"masters": N // 2, "gradients": N // 2, "optimizer": N}


def test_replicas_split_over_fewer() -> None:
    plan = pick_sharding(recipe_of(parallel_replicas=2, parallel_sharding="full"), BIG, 16, 80 * GB)
    assert (plan.shards, plan.replicas) == (8, 2) and plan.bytes_by_part["masters"] == N // 2
    with pytest.raises(RecipeError, match="parallel_replicas=3"):
        pick_sharding(recipe_of(parallel_replicas=3), BIG, 16, 80 * GB)


def test_an_adapter_is_replicated() -> None:
    shape = ModelShape(N, 28, 3584, 18944, 3584, 512, 152_064, 32_768, adapted=N - 10**9, factors=40_000_000)
    recipe = recipe_of(use_peft=True, parallel_sharding="full")
    plan = pick_sharding(recipe, shape, 8, 80 * GB)
    assert plan.sharding == "none" and plan.replicas == 8 and plan.bytes_by_part["optimizer"] == 8 * 40_000_000
    gradients, rollouts = step_transfers(recipe, shape, plan, parse_cluster("8xH100"))
    assert gradients.sent == 2 * 7 / 8 * 4 * 40_000_000
    assert rollouts.sent == 12 * 512 * 1024 * 7 / 8


def test_replicas_send_the_gradient_twice() -> None:
    recipe = recipe_of(parallel_sharding="none")
    plan = plan_for(recipe, BIG, "none", 1, 8, None)
    gradients, _ = step_transfers(recipe, BIG, plan, parse_cluster("8xH100"))
    assert gradients.sent == pytest.approx(2 * 7 / 8 * 4 * N)
    assert gradients.seconds == pytest.approx(2 * 7 / 8 * 4 * N / 360e9, rel=1e-3)


def test_sharded_gradients_are_sent_for_every_micro_batch() -> None:
    recipe = recipe_of(parallel_sharding="grads", tokens_per_micro_batch=16_384)
    plan = pick_sharding(recipe, BIG, 8, 141 * GB)
    # 512 answers of 1024 and 64 prompts of 128 tokens: 532,480, of which a process has 66,560: five micro-batches
    assert micro_batches(recipe, plan, 8) == 5
    by_name = {one.name: one for one in step_transfers(recipe, BIG, plan, parse_cluster("8xH200"))}
    assert by_name["gradients"].sent == pytest.approx(5 * 4 * N * 7 / 8)
    assert by_name["new weights"].sent == pytest.approx(2 * N * 7 / 8)


def test_full_gathers_each_layer_twice_for_every_micro_batch() -> None:
    recipe = recipe_of(parallel_sharding="full", tokens_per_micro_batch=16_384, parallel_replicas=2, beta=0.1)
    plan = pick_sharding(recipe, BIG, 16, 141 * GB)
    batches = micro_batches(recipe, plan, 16)
    assert batches == 3
    sent = {one.name: one.sent for one in step_transfers(recipe, BIG, plan, parse_cluster("2x8xH200"))}
    assert sent["layers"] == pytest.approx(2 * batches * 2 * N * 7 / 8)
    assert sent["gradients"] == pytest.approx(batches * 4 * N * 7 / 8)
    assert sent["gradients between replicas"] == pytest.approx(2 * 4 * N / 8 / 2)
    assert sent["the sampler's copy"] == pytest.approx(2 * N * 7 / 8)


def test_a_group_is_sampled_in_one_process() -> None:
    recipe = recipe_of()  # 64 prompts x 8 answers
    assert [plan_for(recipe, BIG, "grads", n, 1, None).rows for n in (8, 48, 64, 128)] == [64, 16, 8, 8]


def test_full_in_one_process() -> None:
    (plan,) = all_plans(recipe_of(parallel_sharding="full"), BIG, 1, None)
    assert plan.sharding == "full" and plan.bytes_by_part["masters"] == 4 * N


def test_one_process_sends_nothing() -> None:
    recipe = recipe_of()
    assert step_transfers(recipe, BIG, plan_for(recipe, BIG, "none", 1, 1, None), parse_cluster("H200")) == ()


def test_update_time_is_six_flops_a_weight_and_token() -> None:
    recipe = recipe_of(parallel_sharding="grads")
    step = estimate_step(recipe, BIG, pick_sharding(recipe, BIG, 8, 80 * GB), parse_cluster("8xH100"))
    assert step is not None
    assert step.update == pytest.approx(6 * N * 532_480 / 8 / (989e12 * 0.45))
    assert step.tokens == 512 * 1024


@pytest.mark.parametrize(
    ("shape", "rows", "length", "measured"),
    [  # tokens/s of one H200, bfloat16 (bench/RESULTS.md)
        (ModelShape(134_515_008, 30, 576, 1536, 576, 192, 49_152, 8192), 1024, 256, 293_000),
        (MIDDLE, 256, 2048, 47_900),
        (BIG, 256, 256, 29_400),
        (MIDDLE, 512, 256, 103_800),
    ],
)
def test_sampling_is_near_what_was_measured(shape: ModelShape, rows: int, length: int, measured: float) -> None:
    recipe = recipe_of(per_device_train_batch_size=rows, max_completion_length=length, use_peft=True)
    plan = plan_for(recipe, shape, "none", 1, 1, 141 * GB)
    step = estimate_step(recipe, shape, plan, parse_cluster("H200"))
    assert step is not None
    assert step.tokens / step.sampling == pytest.approx(measured, rel=0.15)


def test_eight_times_the_gpus_are_less_than_eight_times_as_fast() -> None:
    recipe, rates = recipe_of(per_device_train_batch_size=1024), []
    for name in ("8xH100", "8x8xH100"):
        cluster = parse_cluster(name)
        step = estimate_step(recipe, BIG, pick_sharding(recipe, BIG, cluster.size, cluster.memory), cluster)
        assert step is not None
        rates.append(step.tokens_per_second)
    assert 1.5 < rates[1] / rates[0] < 8


@pytest.mark.parametrize(  # bytes that two processes share beside a model of 4.3 MB
    ("free", "picked"), [(2**40, "none"), (42 * 10**6, "full"), (None, "none")]
)
def test_auto_is_resolved_for_the_smallest(monkeypatch: pytest.MonkeyPatch, free: int | None, picked: str) -> None:
    world = World(Launch(0, 2, 0, 2))
    monkeypatch.setattr(world, "gather", lambda work, phase: [2**40, free])
    monkeypatch.setattr(shard_plan, "get_world", lambda: world)
    recipe = Recipe(per_device_train_batch_size=8, max_completion_length=16, tokens_per_micro_batch=64)
    policy = load_policy("tiny", device="cpu")
    assert with_sharding(policy, recipe).parallel_sharding == picked
    chosen = recipe.model_copy(update={"parallel_sharding": "full"})
    assert with_sharding(policy, chosen) is chosen
    monkeypatch.setattr(world, "gather", lambda work, phase: [2**40, 30 * 10**6])
    with pytest.raises(ModelError):
        with_sharding(policy, recipe)


def test_two_processes_hold_what_is_planned(tmp_path: Path) -> None:
    """The parts of a real update, of a model whose weights do not all divide by two: both together have each once."""
    script = ROOT / "tests" / "support" / "rank_bytes.py"
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    variables["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    )
    subprocess.run([*words, str(script), str(tmp_path)], env=variables, capture_output=True, timeout=120, check=True)
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    count = ranks[0]["none"]["parameters"]
    shape = ModelShape(count, 1, 1, 1, 1, 1, 1, 1)
    for sharding, shards in (("none", 1), ("grads", 2), ("full", 2)):
        planned = rank_bytes(recipe_of(), shape, sharding, shards, 2 // shards)  # type: ignore[arg-type]
        for part in ("masters", "optimizer"):
            total = sum(rank[sharding][part] for rank in ranks)
            assert total == pytest.approx(2 * planned[part], rel=1e-6), (sharding, part)
        each = 2 if sharding == "none" else 4  # those of one micro-batch stay in bfloat16
        assert sum(rank[sharding]["sums"] for rank in ranks) == 2 * each * count // shards
        assert ranks[0][sharding]["model"] == planned.get("weights", planned.get("sampler's copy")) == 2 * count
