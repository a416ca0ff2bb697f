"""The tool `python`, in the real sandbox: state over the calls of an answer, limits, and what happens past them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time

import pytest

from outdo.envs.calls import call_tool
from outdo.envs.environment import Tool
from outdo.envs.python_tool import MAX_STARTING, make_python_tool, python
from outdo.envs.toolbox import ToolEnvironment
from outdo.envs.tools import find_tools
from outdo.errors import SandboxError, ToolError
from support.processes import left_running, running

pytestmark = pytest.mark.sandbox


@pytest.fixture(autouse=True)
def no_process_left():
    before = running()
    yield
    assert left_running(but=before) == []


def session(*codes, timeout=30.0, **args):
    """The results of calls in one interpreter."""

    async def calls():
        tool = make_python_tool(**args)
        interpreter = tool.make()
        try:
            return [await call_tool(interpreter, tool.schema, {"code": code}, timeout) for code in codes]
        finally:
            interpreter.close()

    return asyncio.run(calls())


def texts(*codes, **args):
    return [result.text for result in session(*codes, **args)]


def test_schema():
    (tool,) = find_tools(["python"])
    assert isinstance(tool, Tool) and tool.name == "python"
    assert tool.schema["function"]["parameters"]["required"] == ["code"]


def test_state_stays_over_calls():
    assert texts(
        "x = 20\ndef double(n):\n    return 2 * n",
        "double(x) + 2",
        "import math; print('π', math.pi); x = 5; x",
        "x",
        "",
        "None",
        "'a' if x else 'b'",
        "for i in range(3): print(i)",
    ) == ["", "42", "π 3.141592653589793\n5", "5", "", "", "'a'", "0\n1\n2"]


def test_modules_and_classes_of_the_answer():
    results = texts(
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int",
        "import pickle; pickle.loads(pickle.dumps(P(3)))",
        "from __future__ import annotations\ny: int = 3\ny",
    )
    assert results == ["", "P(x=3)", "3"]


def test_what_processes_print():
    results = texts(
        "import os, sys\nos.write(1, b'raw\\n')\nprint('err', file=sys.stderr)\nprint('out')",
        "import subprocess; subprocess.run(['echo', 'from echo']).returncode",
        "open('kept.txt', 'w').write('x')",
        "open('kept.txt').read()",
        "pid = os.fork()\nif not pid: print('child')\nelse: os.waitpid(pid, 0); print('parent')",
        "import sys; sys.stdout.close()",
        "1 + 1\nprint('open')",
    )
    assert results == ["raw\nerr\nout", "from echo\n0", "1", "'x'", "child\nparent", "", "open"]


def test_errors_are_shown_and_keep_the_state():
    first, second, third, fourth, fifth = session(
        "kept = 1\ndef fails(n):\n    return n / 0", "print('before')\nfails(3)", "kept", "1 +", "raise SystemExit(3)"
    )
    assert not first.failed and third.text == "1"
    lines = [line for line in second.text.splitlines() if set(line) - set(" ~^")]  # how Python marks the place varies
    assert second.failed and "\n".join(lines) == textwrap.dedent("""\
        Error: the code raised an exception
        before
        Traceback (most recent call last):
          File "<call 2>", line 2, in <module>
            fails(3)
          File "<call 1>", line 3, in fails
            return n / 0
        ZeroDivisionError: division by zero""")
    assert fourth.failed and "SyntaxError" in fourth.text and "/sandbox" not in fourth.text
    assert fifth.failed and fifth.text.endswith("SystemExit: 3")


def test_a_long_traceback_is_short():
    (result,) = session("def f(n):\n    return f(n + 1)\nf(0)")
    assert result.failed and "RecursionError" in result.text and len(result.text) < 1_500


def test_a_call_that_hangs_restarts():
    hung, after, again = session("x = 1\nwhile True: pass", "x", "y = 2; y", seconds=1.0)
    assert hung.failed and "ran longer than 1 s" in hung.text and "lost" in hung.text
    assert after.failed and "NameError: name 'x' is not defined" in after.text
    assert again.text == "2"


def test_the_deadline_of_all_tools_restarts_too():
    started = time.monotonic()
    hung, after, again = session("x = 1\nimport time; time.sleep(60)", "2 + 2", "3", timeout=1.5, seconds=50.0)
    assert hung.text == "Error: timed out after 1.5 s" and time.monotonic() - started < 10
    assert after.text.startswith("The last call took too long") and after.text.endswith("new interpreter.\n4")
    assert again.text == "3"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os; os._exit(3)", "the interpreter has ended: exited with status 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "the interpreter has ended"),
        ("import os; os.closerange(3, 64)", "the interpreter has ended"),
        (
            "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\0\\0\\0\\2{}')\n    except OSError: pass",
            "lost",
        ),
    ],
)
def test_an_interpreter_that_ends(code, says):
    ended, after = session(code, "'works'")
    assert ended.failed and says in ended.text and after.text == "'works'"


def test_memory_and_output_are_bounded():
    memory, printed, value, after = session(
        "x = 'a' * 2**30",
        "for i in range(300): print(i, 'x' * 10**5)",
        "'z' * 10**6",
        "'works'",
        memory_mb=256,
        seconds=20.0,
    )
    assert memory.failed and "MemoryError" in memory.text
    assert len(printed.text) < 20_000 and printed.text.startswith("Error: the code raised an exception\n0 xxx")
    assert "OSError: [Errno 27] File too large" in printed.text
    assert not value.failed and len(value.text) < 8_100 and value.text.startswith("'zzz")
    assert after.text == "'works'"


def test_nothing_of_outside_is_there():
    results = texts(
        "import os; dict(os.environ).get('HOME')",
        "import socket\ntry: socket.create_connection(('127.0.0.1', 22), 1)\nexcept OSError: print('no network')",
        f"import os; os.path.exists({os.getcwd()!r})",
        "input('name? ')",
    )
    assert results[:3] == ["", "no network", "False"] and "EOFError" in results[3]


def test_packages_are_a_choice():
    assert "ModuleNotFoundError" in texts("import numpy")[0]
    assert texts("import numpy; numpy.arange(3).sum()", packages=True, seconds=20.0) == ["np.int64(3)"]


def test_odd_code():
    results = session("x = '\x00'", "'\ud800'", "print('\\ud800')", "x" * 50_000, "# only a comment")
    assert [result.failed for result in results] == [True, True, False, True, False]
    assert results[2].text == "\\ud800" and results[4].text == ""


def test_each_answer_has_its_own_and_they_run_at_once():
    async def answer(env, number):
        await env.step(message(f"x = {number}"))
        observation = await env.step(message("import time; time.sleep(0.5); x"))
        return observation.messages[0]["content"]

    def message(code):
        return {"role": "assistant", "content": "", "tool_calls": [{"name": "python", "arguments": {"code": code}}]}

    async def main():
        tools = find_tools(["python"])
        envs = [ToolEnvironment(tools, tool_timeout=60.0) for _ in range(MAX_STARTING + 4)]
        try:
            return await asyncio.gather(*(answer(env, number) for number, env in enumerate(envs)))
        finally:
            await asyncio.gather(*(env.close() for env in envs))

    assert asyncio.run(main()) == [str(i) for i in range(MAX_STARTING + 4)]


def test_closed_in_the_middle_of_a_call():
    async def main():
        tool = make_python_tool(seconds=30.0)
        interpreter = tool.make()
        call = asyncio.create_task(call_tool(interpreter, tool.schema, {"code": "import time; time.sleep(20)"}, 30.0))
        await asyncio.sleep(1.0)
        await asyncio.to_thread(interpreter.close)
        return await call, await call_tool(interpreter, tool.schema, {"code": "1"}, 30.0)

    started = time.monotonic()
    during, after = asyncio.run(main())
    assert during.failed and after.failed and "the answer has ended" in after.text
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("args", [{"seconds": 0.0}, {"seconds": 1e9}, {"memory_mb": 1}])
def test_limits_that_are_none(args):
    with pytest.raises(ToolError, match="tools: python"):
        make_python_tool(**args)


def test_refused_without_bubblewrap(tmp_path):
    source = (
        "from outdo.envs.tools import find_tools\nfrom outdo.errors import SandboxError\n"
        "try: find_tools(['python'])\nexcept SandboxError as error: print('refused:', error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("refused:") and "apt-get install bubblewrap" in done.stdout
    assert SandboxError.exit_status == 2


def test_never_outside_of_the_sandbox():
    with pytest.raises(NotImplementedError):
        python("print(1)")
