"""Measurements that can be run again. Each module is a command; `README.md` says which."""
