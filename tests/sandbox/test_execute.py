"""The sandbox: nothing runs without bubblewrap, isolation and limits hold, and no process stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from outdo.sandbox import jail, watch
from outdo.sandbox.execute import ExecutionError, Forged, Raised, Sandbox, call_function, require_sandbox, run_program
from outdo.sandbox.inside import decode, encode
from outdo.sandbox.jail import Limits
from support.processes import left_running, running

LIBC = "import ctypes, os, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n"


@pytest.fixture(autouse=True)
def no_process_left():
    require_sandbox()
    before = running()
    yield
    assert left_running(but=before) == []


def printed(source, stdin="", **limits):
    result = run_program(source, stdin, Limits(**{"seconds": 5.0, **limits}))
    assert result.status == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("grader", ["code", "code_fraction"])
def test_refused_without_bubblewrap(tmp_path, grader):
    mark = tmp_path / "ran"
    answer = f"open({str(mark)!r}, 'w')\ndef f(): return 1"
    source = (
        f"from outdo.rewards.code import {grader}\nfrom outdo.errors import SandboxError\n"
        f"answer = {answer!r}\n"
        "try:\n"
        f"    print({grader}([answer], entry_point=['f'], cases=[[{{'expected': 1}}]]))\n"
        "except SandboxError as error:\n    print('refused:', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("refused:") and "apt-get install bubblewrap" in done.stdout
    assert not mark.exists()


def test_refused_where_bubblewrap_fails(tmp_path):
    false = tmp_path / "bwrap"
    false.write_text("#!/bin/sh\necho 'bwrap: no permissions' >&2\nexit 1\n")
    false.chmod(0o755)
    source = "from outdo.sandbox.execute import require_sandbox\nrequire_sandbox()"
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "bwrap: no permissions" in done.stderr and "user namespaces" in done.stderr


def test_file_system():
    names = printed("import os\nprint(*sorted(os.listdir('/')))").split()
    prefix = Path(sys.base_prefix).parts[1]
    assert set(names) <= {"bin", "dev", "inside.py", "lib", "lib64", "sandbox", "tmp", "usr", prefix}
    assert printed("import os\nprint(os.listdir('/tmp'), os.getcwd())") == "[] /tmp"
    assert str(Path(__file__).parent) not in printed(
        f"import os\nprint([p for p in {[str(p) for p in Path(__file__).parents][:-1]!r} if os.path.exists(p)])"
    )


def test_environment_is_empty(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    assert "hunter2" not in printed("import os\nprint(dict(os.environ))")
    assert printed("import os\nprint(os.environ.get('HOME'), os.environ.get('PYTHONPATH'))") == "None None"


def test_no_inherited_descriptors():
    source = (
        "import os\nopen_ = []\nfor n in range(256):\n    try: os.fstat(n); open_.append(n)\n    except OSError: pass\n"
    )
    assert printed(source + "print(open_)") == "[0, 1, 2]"


@pytest.mark.parametrize("path", ["/x", "/inside.py", "/usr/x", "/dev/x", "/bin/x", sys.base_prefix + "/x"])
def test_read_only_outside_tmp(path):
    source = f"try: open({path!r}, 'w'); print('written')\nexcept OSError as error: print('refused')"
    assert printed(source) == "refused"


@pytest.mark.parametrize(
    "call",
    [
        "libc.shmget(0, ctypes.c_size_t(4096), 0o1666)",
        "libc.msgget(0, 0o1666)",
        "libc.unshare(0x10000000)",
        "libc.setns(0, 0)",
        "libc.ptrace(16, os.getppid(), 0, 0)",
        "libc.chroot(b'/tmp')",
        "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)",
        "libc.umount2(b'/tmp', 0)",
        "libc.setuid(0)",
        "libc.sethostname(b'x', 1)",
        "libc.socket(40, 1, 0)",  # AF_VSOCK
        "libc.socket(16, 3, 0)",  # AF_NETLINK
        "libc.socket(2, 1, 0)",
        "libc.socket(10, 2, 0)",
        "libc.inotify_init()",
        "libc.syscall(444, None, 0, 1)",  # landlock_create_ruleset
        "libc.memfd_create(b'x', 0)",
        "libc.connect(libc.socket(2, 1, 0), b'\\x02\\x00\\x00\\x35\\x01\\x01\\x01\\x01' + bytes(8), 16)",
    ],
)
def test_denied_system_calls(call):
    assert int(printed(LIBC + f"print(min(0, {call}))")) < 0


def test_allowed_system_calls():
    source = (
        "import asyncio, subprocess, tempfile, threading, multiprocessing.dummy as dummy\n"
        "async def one(): return 1\n"
        "with tempfile.TemporaryFile() as file: file.write(b'x')\n"
        "two = subprocess.check_output(['echo', '2'], text=True).strip()\n"
        "print(asyncio.run(one()), two, dummy.Pool(2).map(abs, [-3]))"
    )
    assert printed(source) == "1 2 [3]"


@pytest.mark.parametrize(
    ("what", "limit"),
    [("AS", 512 * 2**20), ("NPROC", 16), ("FSIZE", 16 * 2**20), ("NOFILE", 64), ("CORE", 0), ("CPU", 6)],
)
def test_limits_are_hard(what, limit):
    source = f"import resource as r\nprint(*r.getrlimit(r.RLIMIT_{what}))\n"
    assert printed(source) == f"{limit} {limit}"
    raised = (
        f"try: r.setrlimit(r.RLIMIT_{what}, ({limit + 1},) * 2); print('raised')\nexcept (OSError, ValueError): pass"
    )
    assert printed(source + raised) == f"{limit} {limit}"


def test_limits_hold():
    forks = "import os, time\nn = 0\ntry:\n    while True:\n        if not os.fork(): time.sleep(100)\n        n += 1\n"
    assert int(printed(forks + "except OSError: print(n, flush=True)")) < 16
    written = "n = 0\ntry:\n    for i in range(99):\n        open(f'/tmp/{i}', 'wb').write(bytes(2**20)); n += 1\n"
    assert int(printed(written + "except OSError: print(n)")) <= 16
    shared = "try: open('/dev/shm/x', 'wb').write(bytes(2**21)); print('written')\nexcept OSError: print('no')"
    assert printed(shared) == "no"
    assert printed("try: bytearray(2**30)\nexcept MemoryError: print('no')") == "no"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("while True: pass", "timed out after 0.5 s"),
        ("import time\ntime.sleep(99)", "timed out after 0.5 s"),
        ("import os\nos.close(1); os.close(2)\nwhile True: pass", "timed out after 0.5 s"),
        ("while True: print('x' * 4096)", "printed more than 1048576 bytes"),
        ("import sys\nwhile True: sys.stderr.write('x' * 4096)", "printed more than 1048576 bytes"),
    ],
)
def test_programs_that_hang_or_flood(source, message):
    started = time.monotonic()
    with pytest.raises(ExecutionError, match=message):
        run_program(source, "", Limits(0.5))
    assert time.monotonic() - started < 3


FILLS = {
    "files": "os.close(os.open(f'/tmp/{i}', 66))",
    "shared files": "os.close(os.open(f'/dev/shm/{i}', 66))",
    "folders": "os.mkdir(f'/tmp/{i}')",
    "nested folders": "os.mkdir('d'); os.chdir('d')",
    "links": "os.symlink('x', f'/tmp/{i}')",
    "hard links": "i or open('/tmp/x', 'w'); os.link('/tmp/x', f'/tmp/{i}')",
    "pipes": "os.mkfifo(f'/tmp/{i}')",
    "attributes": "i or open('/tmp/x', 'w'); os.setxattr('/tmp/x', f'user.{i}', b'x' * 4000)",
}


@pytest.mark.parametrize("loop", FILLS.values(), ids=FILLS)
def test_number_of_files(loop):
    """Each takes memory of the kernel, which no limit of a process counts."""
    source = f"import os\ni = 0\nwhile True:\n    try:\n        {loop}; i += 1\n    except OSError: os.stat('/tmp')"
    with pytest.raises(ExecutionError, match=r"more than 4096 files|timed out"):  # some file systems have no attributes
        run_program(source, "", Limits(5.0 if "xattr" not in loop else 1.0))


@pytest.mark.parametrize("memory", ["bytearray(40 * 2**20)", "mmap.mmap(-1, 40 * 2**20)"])
def test_memory_of_all_processes(memory):
    forks = "import mmap, os, time\nfor _ in range(12):\n    if not os.fork(): break\n"
    fill = f"m = {memory}\nfor i in range(0, len(m), 4096): m[i] = 1\ntime.sleep(9)"
    try:
        status = run_program(forks + fill, "", Limits(8.0, memory_mb=80)).status
    except ExecutionError as error:
        assert "more than" in str(error)
    else:
        assert status != 0  # ended by the kernel


def test_processes_within_the_limits():
    source = (
        "from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor\nimport os, tempfile\n"
        "def work(i):\n    return len(bytearray(20 * 2**20)) + i\n"
        "with ThreadPoolExecutor(4) as threads: print(sum(threads.map(work, range(4))) > 0)\n"
        "with ProcessPoolExecutor(3) as processes: print(sum(processes.map(work, range(4))) > 0)\n"
        "for i in range(1000): open(f'/tmp/{i}', 'w')\nprint(len(os.listdir('/tmp')) >= 1000)"
    )
    assert printed(source) == "True\nTrue\nTrue"


def test_cgroups_are_reused():
    pool = watch.cgroups()
    if pool.parent is None:
        pytest.skip("this user may create no cgroup")
    for _ in range(3):
        printed("pass")
    own = set(pool.parent.glob(f"outdo-{os.getpid()}-*"))
    printed("pass")
    assert set(pool.parent.glob(f"outdo-{os.getpid()}-*")) == own != set()
    with Sandbox(Limits(5.0)) as sandbox:
        sandbox.load(["def f(): return 1"], "f")
        pids = watch.usage(sandbox.started_pid()).pids
        assert len(pids) > 1 and watch.members(sandbox.cgroup) >= set(pids)


def test_background_processes_end():
    source = (
        "import os, time\nfor _ in range(5):\n    if not os.fork():\n        os.setsid(); time.sleep(99)\nprint('x')"
    )
    started = time.monotonic()
    assert printed(source) == "x"
    assert time.monotonic() - started < 3


def test_raised_and_forged():
    with Sandbox(Limits(5.0)) as sandbox:
        sandbox.load(["def f(x): return 1 / x"], "f")
        assert sandbox.call([4], {}) == 0.25
        with pytest.raises(Raised, match="ZeroDivisionError: division by zero"):
            sandbox.call([0], {})
        assert sandbox.call([2], {}) == 0.5  # it still takes calls
    with Sandbox(Limits(5.0)) as sandbox:
        source = "import sys\nchannel = sys._getframe(2).f_locals['channel']\nchannel.write(nonce='7')\ndef f(): pass"
        with pytest.raises(Forged, match="no request"):
            sandbox.load([source], "f")
            sandbox.call([], {})


def test_call_function():
    assert call_function("def grade(a, b): return {'x': (a, b)}", "grade", [1, None]) == {"x": (1, None)}
    with pytest.raises(ExecutionError, match="no function 'grade'"):
        call_function("", "grade", [])
    with pytest.raises(ExecutionError, match="timed out"):
        call_function("def grade():\n    while True: pass", "grade", [], seconds=0.5)


NUMBERS = [None, True, 0, -1, 2**70, 1 << 50_000, -(1 << 50_000), 0.1, float("inf"), 1j]
TEXTS = ["", '\ud800\x00é"\\', b"\x00\xff"]
HOLDERS = [[], (), set(), {}, [1, (2, {3}), {"a": [None]}], frozenset({(1, 2)}), {1: 2, (3,): {4}, "1": None}]


@pytest.mark.parametrize("value", [*NUMBERS, *TEXTS, *HOLDERS], ids=range(20))
def test_plain_values_round_trip(value):
    again = decode(json.loads(encode(value)))
    assert again == value and type(again) is type(value)


@pytest.mark.parametrize(
    "value", [object(), type("I", (int,), {})(3), range(3), bytearray(b"x"), [object()], {1: print}]
)
def test_other_values_are_refused(value):
    with pytest.raises(TypeError, match="not a plain value"):
        encode(value)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_fifty_runs_leak_nothing():
    printed("pass")
    before, running_before = descriptors(), len(psutil.Process().children(recursive=True))

    def one(i):
        if i % 3 == 0:
            return printed("print(7)") == "7"
        with Sandbox(Limits(5.0)) as sandbox:
            if i % 3 == 1:
                sandbox.load(["import os\nos.fork()\ndef f(): return 7"], "f")
        return True  # left in the middle of its start, or of a conversation

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(_quietly(one), range(50)))
    assert all(results)
    assert descriptors() == before
    assert len(psutil.Process().children(recursive=True)) == running_before


def _quietly(function):
    def call(i):
        try:
            return function(i)
        except Forged:  # both halves of a fork answered
            return True

    return call


def test_exit_during_start():
    for moment in range(40):
        with Sandbox(Limits(5.0)):
            time.sleep(moment / 4000)


@pytest.mark.parametrize(
    "source",
    [
        "import time\nwhile True: time.sleep(9)",
        "import ctypes, os\nctypes.CDLL(None).prctl(1, 0)\nif not os.fork(): os.setsid()\nwhile True: pass",
        "import os\nos.closerange(0, 64)\nwhile True: pass",
    ],
)
def test_no_process_survives_the_parent(source):
    before = running()
    program = (
        "from outdo.sandbox.jail import Limits\nfrom outdo.sandbox.execute import require_sandbox, run_program\n"
        f"require_sandbox()\nprint('started', flush=True)\nrun_program({source!r}, '', Limits(60.0))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout.readline() == "started\n"
            time.sleep(0.4)
            assert any("/inside.py" in p.cmdline() for p in psutil.Process(parent.pid).children(recursive=True))
        finally:
            parent.kill()
    assert left_running(but=before) == []


def test_threads_share_one_namespace():
    """The namespace is on the command line and inherited as a descriptor: both must be the same one."""
    jail._create_namespace.cache_clear()
    with ThreadPoolExecutor(8) as threads:
        namespaces = list(threads.map(lambda _: jail._root_namespace(), range(8)))
    assert len(set(namespaces)) == 1
