"""System calls that fail in the sandbox, as a seccomp filter that bubblewrap loads.

`jail.py` hides what is outside. This closes what namespaces leave open: memory that no limit counts (System V segments,
memory files, watches, network sockets), the keyring of the user, other processes' memory, and the system
calls in which most kernel vulnerabilities were found. Each fails with EPERM.

Not covered: architectures other than x86-64 and ARM64, where nothing is filtered.
"""

from __future__ import annotations

import platform
import struct

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH_*, column below
_SOCKET = (41, 198)
_FAMILIES = (1,)  # AF_UNIX: there is no network, and buffers of its sockets are memory that no limit counts
_DENIED = (
    *((29, 194), (30, 196), (64, 190), (68, 186), (240, 180)),  # shmget, shmat, semget, msgget, mq_open
    *((319, 279), (447, 447)),  # memfd_create, memfd_secret
    *((248, 217), (249, 218), (250, 219)),  # add_key, request_key, keyctl
    *((101, 117), (310, 270), (311, 271), (438, 438)),  # ptrace, process_vm_readv and _writev, pidfd_getfd
    *((272, 97), (308, 268), (161, 51)),  # unshare, setns, chroot
    *((165, 40), (166, 39), (155, 41), (428, 428)),  # mount, umount2, pivot_root, open_tree
    *((429, 429), (430, 430), (432, 432), (442, 442)),  # move_mount, fsopen, fsmount, mount_setattr
    *((321, 280), (298, 241), (323, 282)),  # bpf, perf_event_open, userfaultfd
    *((425, 425), (426, 426), (427, 427)),  # io_uring_setup, io_uring_enter, io_uring_register
    *((253, 26), (294, 26), (300, 262)),  # inotify_init, inotify_init1, fanotify_init
    *((444, 444), (445, 445), (446, 446)),  # landlock_create_ruleset, _add_rule, _restrict_self
)

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # opcodes of classic BPF
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _EPERM, _KILL = 0x7FFF0000, 0x00050001, 0x80000000


def rules() -> bytes:
    """The filter for this machine."""

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    allow, deny = step(_RETURN, _ALLOW), step(_RETURN, _EPERM)
    if platform.machine() not in _ARCHITECTURES:
        return allow
    architecture, column = _ARCHITECTURES[platform.machine()]
    lines = [step(_LOAD, _ARCHITECTURE), step(_EQUAL, architecture, yes=1), step(_RETURN, _KILL)]
    lines += [step(_LOAD, _NUMBER), step(_AT_LEAST, 0x40000000, no=1), deny]  # x32, the second table of x86
    for numbers in _DENIED:
        lines += [step(_EQUAL, numbers[column], no=1), deny]
    lines += [step(_EQUAL, _SOCKET[column], yes=1), allow, step(_LOAD, _FIRST_ARGUMENT)]
    for family in _FAMILIES:
        lines += [step(_EQUAL, family, no=1), allow]
    return b"".join([*lines, deny])
