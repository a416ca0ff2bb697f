"""The method as pure functions on tensors. Imports torch and `outdo.types`, nothing else."""
