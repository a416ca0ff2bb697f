# make run: install outdo and train the default. make test: install what the tests need on top, and test.
# Needs Python 3.11 or 3.12 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run setup sandbox browser test test-slow verifiers bridges faults drills lint format graph docs figures pictures clean
run: $(VENV)/.done-run
	$(BIN)/outdo train

setup: $(VENV)/.done sandbox

# Code is graded in bubblewrap and nowhere else; everything but that works without it.
sandbox:
	@command -v bwrap >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get install -y --no-install-recommends bubblewrap; } \
	|| echo "To grade code, install bubblewrap: sudo apt-get install bubblewrap (or dnf, pacman)"

# The dashboard's tests look at it in a real browser; they are skipped where there is none.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get install -y --no-install-recommends chromium; } \
	|| echo "To test the dashboard, install chromium: sudo apt-get install chromium (or dnf, pacman)"

# What a run, its plots and the dashboard need. The constraints decide which build of torch is taken.
$(VENV)/.done-run: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"outdo needs Python 3.11 or 3.12, and $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[plot,dash]' --constraint constraints.txt
	touch $@

# On top, what tests, linters and benchmarks need.
$(VENV)/.done: $(VENV)/.done-run
	$(BIN)/pip install --quiet --editable '.[dev]' --constraint constraints.txt
	touch $@

# A test has a core to itself; as many run at once as there are cores, up to eight.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal -m "not slow and not gpu"

test-slow: setup browser
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow" --ignore=tests/faults

# Environments of the library verifiers. It has an environment of its own, because it needs an older openai.
verifiers: .venv-verifiers/.done
	OMP_NUM_THREADS=1 PATH="$(CURDIR)/.venv-verifiers/bin:$$PATH" \
	.venv-verifiers/bin/python -m pytest tests/serve/test_verifiers.py

.venv-verifiers/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-verifiers
	grep -v '^openai==' constraints.txt > .venv-verifiers/constraints.txt
	.venv-verifiers/bin/pip install --quiet --editable '.[verifiers,serve]' pytest uv --constraint .venv-verifiers/constraints.txt
	touch $@

# Other trainers, each in an environment of its own: TRL, and Unsloth, which needs older versions of it.
bridges: .venv-trl/.done .venv-unsloth/.done
	OMP_NUM_THREADS=1 .venv-trl/bin/python -m pytest -n 2 --dist loadfile tests/bridges
	OMP_NUM_THREADS=1 .venv-unsloth/bin/python -m pytest tests/bridges/test_unsloth_backend.py

.venv-trl/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-trl
	.venv-trl/bin/pip install --quiet --editable '.[trl,plot]' pytest pytest-xdist trl==1.16.0 --constraint constraints.txt
	touch $@

# Without what only a GPU uses, which is gigabytes: torchvision, xformers, a torch of its own.
.venv-unsloth/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-unsloth
	grep -vE '^(transformers|datasets|huggingface_hub|certifi|dill|multiprocess|fsspec)==' constraints.txt > .venv-unsloth/constraints.txt
	.venv-unsloth/bin/pip install --quiet --editable . 'trl[peft]==1.15.0' 'transformers<=5.17' 'datasets<5' pytest \
	tyro nest-asyncio sentencepiece hf_transfer cut_cross_entropy msgspec einops psutil wheel pillow \
	--constraint .venv-unsloth/constraints.txt
	.venv-unsloth/bin/pip install --quiet --no-deps unsloth==2026.10.9 unsloth_zoo==2026.10.9 bitsandbytes torchao
	touch $@

# Runs that are killed, starved of disk and fed nonsense, the long ones too.
faults: setup
	$(BIN)/python -m pytest tests/faults -m "slow" -s

# Every failure mode caused on purpose, found by the doctor and fixed: about eight minutes of two cores.
drills: setup
	$(BIN)/outdo drill all --jobs 2 --out "$$(mktemp -d)"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/support/words.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Which package imports which, from the imports themselves.
graph: setup
	$(BIN)/python tests/support/graph.py

docs: setup
	$(BIN)/python docs/generate.py

# The figures that the README quotes: three seeds of the default run.
figures: setup
	$(BIN)/python -m bench.default_run

# The pictures of the dashboard in docs/images, from real runs: about ten minutes on two cores.
pictures: setup browser
	$(BIN)/python docs/pictures.py

clean:
	rm -rf $(VENV) .venv-verifiers .venv-trl .venv-unsloth .pytest_cache .mypy_cache .ruff_cache
