"""The built-in default: a Llama of about a million parameters with random weights and a character tokenizer.

The SFT warm-up trains the format of an answer, GRPO the rest. It is saved as an ordinary Hugging Face folder.
"""

from __future__ import annotations

import string

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<unk>", "<|user|>", "<|assistant|>", "<|end|>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")  # one token each, kept in the decoded text
TEMPLATE = (
    "{% for m in messages %}"
    "{{ ('<|assistant|>' if m['role'] == 'assistant' else '<|user|>') + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each printable ASCII character, newline included, and for each of the think and answer tags."""
    characters = [c for c in string.printable if c == "\n" or c not in string.whitespace or c == " "]
    vocab = {token: i for i, token in enumerate((*SPECIAL, *TAGS, *characters))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens(list(TAGS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def tiny_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.05,  # with 0.02, learning takes three times as many steps to start at this width
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
