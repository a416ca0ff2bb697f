"""`accelerate launch` with the files that people have, which ask for sharding and precision."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from outdo.models.load import load_policy, save_policy
from outdo.runs.manifest import read_manifest

SHARED = {"compute_environment": "LOCAL_MACHINE", "num_machines": 1, "num_processes": 2, "use_cpu": True}
FSDP2 = {
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_cpu_ram_efficient_loading": True},
}
ZERO2 = {"distributed_type": "DEEPSPEED", "mixed_precision": "no", "deepspeed_config": {"zero_stage": 2}}


@pytest.mark.parametrize(
    ("config", "options", "keys", "sharding", "dtype"),
    [
        (FSDP2, [], [], "full", "bfloat16"),
        (FSDP2, [], ["parallel.sharding=grads", "dtype=float32"], "grads", "float32"),
        (ZERO2, ["--multi_gpu"], ["parallel.sharding=grads"], "grads", "float32"),
    ],
)
def test_run(
    tmp_path: Path, config: dict[str, object], options: list[str], keys: list[str], sharding: str, dtype: str
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**SHARED, **config}))
    save_policy(load_policy("tiny", device="cpu"), tmp_path / "model")
    words = [
        *options,
        "-m",
        "outdo",
        "train",
        "model_name_or_path=model",
        "output_dir=run",
        "max_steps=1",
        "eval_size=2",
    ]
    words += ["eval_samples=2", "max_completion_length=16", "per_device_train_batch_size=16", *keys]
    launch(words, tmp_path)
    recipe = read_manifest(tmp_path / "run").recipe
    assert (recipe["parallel_sharding"], recipe["dtype"]) == (sharding, dtype)


def test_every_process_reads_the_weights(tmp_path: Path) -> None:
    """accelerate's variables would have transformers give zeros to all processes but the first."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**SHARED, **FSDP2}))
    save_policy(load_policy("tiny", device="cpu"), tmp_path / "model")
    script = """
        from pathlib import Path
        from outdo.models.load import load_policy
        from outdo.parallel.world import join
        world = join(60, "cpu")
        policy = load_policy("model", device="cpu")
        total = sum(float(p.detach().abs().sum()) for p in policy.model.parameters())
        Path(f"rank-{world.rank}").write_text(str(total))
    """
    (tmp_path / "read.py").write_text(textwrap.dedent(script))
    launch(["read.py"], tmp_path)
    first, second = ((tmp_path / f"rank-{rank}").read_text() for rank in (0, 1))
    assert float(first) > 0 and first == second


def launch(words: list[str], folder: Path) -> None:
    """`accelerate launch` with the configuration of that folder."""
    start = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "config.yaml"]
    start += ["--main_process_port", "0", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(start, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
