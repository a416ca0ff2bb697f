"""The walls of the sandbox: bubblewrap's command line.

No network, namespaces of its own (processes, users, mounts, IPC, host name), no capability, no new privileges. The
system is read-only and of it only the interpreter is there; home, data and environment are not. `/tmp` is small and
private. Some system calls fail (`syscalls.py`).

Not covered: a hole in the kernel is a hole here, and memory is limited for each process, not for all of them together.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from outdo.errors import SandboxError
from outdo.sandbox import inside

FIRST_USER, NUM_USERS = 1000, 60_000


@dataclass(frozen=True)
class Limits:
    seconds: float = 10.0  # wall clock, for everything that one answer does
    memory_mb: int = 512  # address space of each process
    processes: int = 16  # threads count too
    file_mb: int = 16  # of a file, and of all of /tmp
    output: int = 2**20  # bytes that a program may print
    packages: bool = False  # whether the installed Python packages are there, read-only


@cache
def _options() -> frozenset[str]:
    """Which of the options that older versions lack this bubblewrap has."""
    text = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, check=False).stdout
    return frozenset(option for option in ("--size", "--disable-userns") if option in text)


def _packages() -> list[str]:
    return [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages") and Path(path).is_dir()]


_HOLDER = """
import ctypes
assert ctypes.CDLL(None).unshare(0x10000000) == 0  # CLONE_NEWUSER
print(flush=True), input()  # here the users are mapped
open("/proc/sys/user/max_user_namespaces", "w").write("0")
print(flush=True), input()
"""


_ONE_MAKER = threading.Lock()  # two threads that make the first sandboxes must not have a namespace each


def _root_namespace() -> int | None:
    with _ONE_MAKER:
        return _made_namespace()


@cache
def _made_namespace() -> int | None:
    """For root only: a user namespace with many users in it, so that each sandbox runs as one of its own.

    The kernel does not hold root to a limit of processes, whatever root is called inside a namespace.
    """
    if os.geteuid() != 0:
        return None
    line = [sys.executable, "-I", "-S", "-c", _HOLDER]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder:
        assert holder.stdin and holder.stdout
        for name in ("uid_map", "gid_map") if holder.stdout.readline() else ():
            Path(f"/proc/{holder.pid}", name).write_text(f"0 0 1\n{FIRST_USER} {2**20} {NUM_USERS}\n")
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        if not holder.stdout.readline():
            raise SandboxError("root may not make a user namespace with users in it; run as another user")
        descriptor = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY)
        holder.kill()
    return descriptor


def descriptors(*others: int) -> tuple[int, ...]:
    """What a jailed process must inherit."""
    namespace = _root_namespace()
    return others if namespace is None else (*others, namespace)


def command(info: int, rules: int, limits: Limits, mode: str) -> list[str]:
    """The whole command line: what is there, what is not, and who runs. `info` gets the pid of the first process.

    That one is bubblewrap's own, which nothing inside can reach: what is judged could take back its promise to die with
    its parent.
    """
    line = ["bwrap", "--unshare-all", "--info-fd", str(info), "--die-with-parent", "--new-session"]
    line += ["--cap-drop", "ALL", "--seccomp", str(rules)]
    user, namespace = 0, _root_namespace()
    if namespace is None:
        line += ["--unshare-user", *(["--disable-userns"] if "--disable-userns" in _options() else [])]
    else:
        user = FIRST_USER + secrets.randbelow(NUM_USERS)
        line[1:2] = ["--userns", str(namespace), "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
        line += ["--unshare-cgroup-try", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    line += ["--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "OPENBLAS_NUM_THREADS", "1"]
    line += ["--hostname", "sandbox", "--dev", "/dev"]
    small = ["--size", str(limits.file_mb * 2**20)] if "--size" in _options() else []
    line += ["--perms", "1777", *small, "--tmpfs", "/tmp"]
    line += ["--perms", "1777", "--size", str(2**20), "--tmpfs", "/dev/shm"] if small else []  # for semaphores
    for path in ("/usr", "/lib", "/lib64", "/bin"):
        if os.path.islink(path):
            line += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            line += ["--ro-bind", path, path]
    packages = _packages() if limits.packages else []
    for path in (sys.base_prefix, *packages):
        if path != "/" and not path.startswith("/usr/"):  # all that an interpreter in / needs is there
            for parent in list(Path(path).parents)[-2::-1]:  # those of a home are closed to other users
                line += ["--perms", "0755", "--dir", str(parent)]
            line += ["--ro-bind", path, path]
    line += ["--ro-bind", inside.__file__, "/inside.py"]
    line += ["--chdir", "/tmp", "--remount-ro", "/dev", "--remount-ro", "/"]
    line += [] if small else ["--remount-ro", "/tmp"]
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    numbers = (user, limits.memory_mb, int(limits.seconds) + 1, limits.processes, limits.file_mb)
    return [*line, python, "-I", "-S", "-B", "/inside.py", mode, *map(str, numbers), *packages]
