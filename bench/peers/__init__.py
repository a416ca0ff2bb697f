"""Other trainers, measured on the same work as ours. A peer runs under a Python of its own and cannot import outdo."""
