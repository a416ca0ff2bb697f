"""Our GRPO step beside TRL's on a GPU: `python -m bench.gpu_step [--shape smollm2-135m]`.

As `bench.cpu_step`, with the work that a GPU is worth, in bfloat16. TRL is the one of this Python, if it has it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench import cpu_step

if __name__ == "__main__":
    cpu_step.main(
        prompts=128, group=8, prompt_tokens=128, new_tokens=256, micro_batch=64, steps=4, rounds=1,
        shape="smollm2-135m", device="cuda", trl_python=Path(sys.executable),
    )  # fmt: skip
