"""Training loads no viewer that only a browser needs."""

from __future__ import annotations

import subprocess
import sys


def test_api_loads_no_dashboard() -> None:
    code = "import sys, outdo.api; print([name for name in sys.modules if name.startswith('outdo.dash')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and done.stdout.strip() == "[]", done.stderr
