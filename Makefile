# The user's commands. `make` alone lists them.
PY := .venv/bin/python
SIZES ?= 8
SEED ?= 0
MODEL ?= tiny

.PHONY: help setup setup-vllm setup-openenv demo test lint mutants lock image image-cpu image-check submission
help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(MAKEFILE_LIST)

setup: ## make .venv with the pinned packages (CPU)
	@scripts/setup.sh

setup-vllm: setup ## make .venv-vllm: vLLM for CPUs, for the tests and to try
	@scripts/setup-vllm.sh

setup-openenv: setup ## make .venv-openenv: OpenEnv, for its examples and the tests
	@scripts/setup-openenv.sh

demo: setup ## learn Goofspiel on this machine, end to end (SIZES=all, SEED=n, MODEL=smollm2; FORMAT=duel)
ifneq ($(FORMAT),)
ifneq ($(FORMAT) $(MODEL) $(SIZES),duel tiny 8)
	$(error FORMAT may be duel, without MODEL and SIZES; recipes/smollm2-duels.toml is for smollm2)
endif
	@$(PY) -m miner duel-demo --seed $(SEED)
else
	@$(PY) -m miner demo --model $(MODEL) --sizes $(SIZES) --seed $(SEED)
endif

# Bytecode is kept: each of the four processes would compile all tests again.
test: setup-vllm setup-openenv lint ## static checks and the whole test suite
	@PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(TEST_FLAGS)

lint: setup ## ruff, mypy, and imports that go one way
	@$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy
	@.venv/bin/lint-imports --no-logo --no-cache

mutants: setup ## how many small defects the tests notice (mutmut; hours for all of them)
	@$(PY) -m pip install --quiet --disable-pip-version-check mutmut==3.8.1
	@$(PY) scripts/mutants.py $(MUTANTS)

image: ## build the production image as validators do, without a cache (about nine gigabytes)
	@rm -f .image-seconds
	@scripts/docker/prepare.sh --pull
	@start=$$(date +%s); commit=$$(git rev-parse HEAD); docker build --no-cache --tag goofspiel-miner:production \
	  --file ops/docker/standalone-text-trainer.dockerfile . \
	  && echo $$(($$(date +%s) - start)) $$commit >.image-seconds

image-cpu: ## build the small image without CUDA (goofspiel-miner:cpu), for tests and compose
	@scripts/docker/prepare.sh
	@scripts/docker/image-cpu.sh

image-check: setup ## look into the production image: pins, vLLM's flags, a run under the limits
	@MINER_IMAGE=goofspiel-miner:production $(PY) -m pytest tests/containers/check_production.py

submission: ## check whether HEAD can be submitted, and print the commit
	@python3 scripts/check_submission.py

lock: setup ## resolve requirements.lock, the production packages with hashes, again
	@$(PY) -m pip install --quiet --disable-pip-version-check uv==0.13.9
	@$(PY) -m uv pip compile --quiet --generate-hashes --no-annotate --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_28 --custom-compile-command "make lock" \
	  --output-file requirements.lock requirements.txt
