"""Isolation of the sandbox: bubblewrap's command line.

No network, separate namespaces (processes, users, mounts, IPC, host name), no capabilities, no new privileges. The file
system is read-only and holds the interpreter, but no home, data or environment variables. `/tmp` is small and private.
Some system calls fail (`seccomp.py`).

`watch.py` bounds what all processes of a sandbox take together.

Not covered: vulnerabilities of the kernel.
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

FIRST_UID, NUM_UIDS = 1000, 60_000
PACKAGES = ("site-packages", "dist-packages")  # the last part of their folders


@dataclass(frozen=True)
class Limits:
    seconds: float = 10.0  # wall clock, for everything that one answer does
    memory_mb: int = 512  # address space of each process
    processes: int = 16  # threads included
    file_mb: int = 16  # of one file, and of all of /tmp
    output: int = 2**20  # bytes a program may print
    packages: bool = False  # mount the installed Python packages, read-only
    files: int = 4096  # in /tmp and /dev/shm

    @property
    def total_mb(self) -> int:
        """Memory of all processes together."""
        return 2 * self.memory_mb


@cache
def _options() -> frozenset[str]:
    """The options that this bubblewrap supports, of those that older versions lack."""
    text = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, check=False).stdout
    return frozenset(option for option in ("--size", "--disable-userns") if option in text)


_HOLDER = """
import ctypes
assert ctypes.CDLL(None).unshare(0x10000000) == 0  # CLONE_NEWUSER
print(flush=True), input()  # the parent maps the users meanwhile
open("/proc/sys/user/max_user_namespaces", "w").write("0")
print(flush=True), input()
"""


def _script() -> Path:
    """What runs inside: compiled where Python keeps it so, which saves a tenth of the time to start."""
    cached = Path(getattr(inside, "__cached__", None) or "")
    return cached if cached.is_file() else Path(inside.__file__)


_NAMESPACE_LOCK = threading.Lock()  # threads that start the first sandboxes must share one namespace


def _root_namespace() -> int | None:
    with _NAMESPACE_LOCK:
        return _create_namespace()


@cache
def _create_namespace() -> int | None:
    """For root only: a user namespace with many users, so that each sandbox runs as a user of its own.

    The kernel exempts root from the limit on processes, whatever its name inside a namespace.
    """
    if os.geteuid() != 0:
        return None
    line = [sys.executable, "-I", "-S", "-c", _HOLDER]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder:
        assert holder.stdin and holder.stdout
        for name in ("uid_map", "gid_map") if holder.stdout.readline() else ():
            Path(f"/proc/{holder.pid}", name).write_text(f"0 0 1\n{FIRST_UID} {2**20} {NUM_UIDS}\n")
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        if not holder.stdout.readline():
            raise SandboxError("root cannot create a user namespace with mapped users: run as another user")
        descriptor = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY)
        holder.kill()
    return descriptor


def descriptors(*others: int) -> tuple[int, ...]:
    """File descriptors that a sandboxed process must inherit."""
    namespace = _root_namespace()
    return others if namespace is None else (*others, namespace)


def command(info: int, rules: int, limits: Limits, mode: str) -> list[str]:
    """The full command line: mounts, namespaces and user. bubblewrap writes its child's pid to `info`.

    That child is bubblewrap's own, out of reach from inside: untrusted code could undo its own `--die-with-parent`.
    """
    line = ["bwrap", "--unshare-all", "--info-fd", str(info), "--die-with-parent", "--new-session"]
    line += ["--cap-drop", "ALL", "--seccomp", str(rules)]
    user, namespace = 0, _root_namespace()
    if namespace is None:
        line += ["--unshare-user", *(["--disable-userns"] if "--disable-userns" in _options() else [])]
    else:
        user = FIRST_UID + secrets.randbelow(NUM_UIDS)
        line[1:2] = ["--userns", str(namespace), "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
        line += ["--unshare-cgroup-try", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    line += ["--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "OPENBLAS_NUM_THREADS", "1"]
    line += ["--hostname", "sandbox", "--dev", "/dev"]
    tmp_size = ["--size", str(limits.file_mb * 2**20)] if "--size" in _options() else []
    line += ["--perms", "1777", *tmp_size, "--tmpfs", "/tmp"]
    line += ["--perms", "1777", "--size", str(2**20), "--tmpfs", "/dev/shm"] if tmp_size else []  # for semaphores
    for path in ("/usr", "/lib", "/lib64", "/bin"):
        if os.path.islink(path):
            line += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            line += ["--ro-bind", path, path]
    folders = sys.path if limits.packages else []
    packages = [path for path in folders if Path(path).name in PACKAGES and Path(path).is_dir()]
    for path in (sys.base_prefix, *packages):
        if path != "/" and not path.startswith("/usr/"):  # an interpreter in / or /usr is mounted above
            for parent in list(Path(path).parents)[-2::-1]:  # parents in a home directory are closed to other users
                line += ["--perms", "0755", "--dir", str(parent)]
            line += ["--ro-bind", path, path]
    folder = Path(inside.__file__).parent
    line += ["--ro-bind", str(_script()), "/inside.py", "--ro-bind", str(folder), "/sandbox"]
    line += ["--chdir", "/tmp", "--remount-ro", "/dev", "--remount-ro", "/"]
    line += [] if tmp_size else ["--remount-ro", "/tmp"]
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    numbers = (user, limits.memory_mb, int(limits.seconds) + 1, limits.processes, limits.file_mb)
    return [*line, python, "-I", "-S", "-B", "/inside.py", mode, *map(str, numbers), *packages]
