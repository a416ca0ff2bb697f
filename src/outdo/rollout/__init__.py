"""Samplers: prompts in, groups of answers out. `outdo.types.Sampler` is the protocol that they share."""
