"""Models: loading and saving, tokenizer and chat template, LoRA, the written-out decoder and its kernels."""
