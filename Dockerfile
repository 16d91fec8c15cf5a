# The production image: CUDA 13, Python 3.11, every package pinned with hashes.
# Validators build ops/docker/standalone-text-trainer.dockerfile, or the one in dockerfiles/ where that
# is missing; a test keeps both equal to this file. The repository is the context. Their builder may be the classic one: no BuildKit features.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}

# Triton, DeepSpeed and vLLM compile while they run. The official image brings Python's headers.
RUN apt-get update -qq \
    && apt-get install -qq -y --no-install-recommends ca-certificates gcc g++ libc6-dev \
    && { [ -f "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] \
         || apt-get install -qq -y --no-install-recommends python3-dev; } \
    && rm -rf /var/lib/apt/lists/*

# No .pyc files: whatever lies in this image can be read.
COPY requirements.lock /tmp/requirements.lock
RUN export PYTHONDONTWRITEBYTECODE=1 UV_SYSTEM_CERTS=1 UV_HTTP_TIMEOUT=300 UV_NO_CACHE=1 \
    && echo "uv==0.13.9 --hash=sha256:d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19" >/tmp/uv.lock \
    && python -m pip install --quiet --root-user-action=ignore --no-cache-dir --no-compile --no-deps \
       --require-hashes --target /tmp/uv -r /tmp/uv.lock \
    && /tmp/uv/bin/uv pip install --quiet --system --no-deps --require-hashes -r /tmp/requirements.lock \
    && rm -rf /tmp/uv /tmp/uv.lock /tmp/requirements.lock

# CUDA's compiler comes from wheels, which lack what build scripts look for: lib64/ and the names
# of libraries without versions.
RUN cuda=$(python -c "import nvidia; print(list(nvidia.__path__)[0] + '/cu13')") \
    && ln -s lib "$cuda/lib64" \
    && for library in "$cuda"/lib/lib*.so.*; do \
         plain="${library%%.so.*}.so"; [ -e "$plain" ] || ln -s "${library##*/}" "$plain"; \
       done \
    && ln -s "$cuda" /usr/local/cuda \
    && /usr/local/cuda/bin/nvcc --version

# Data-center GPUs run CUDA 13 on drivers older than 580 with these libraries; the orchestrator uses
# them only there. A build that cannot fetch them goes without.
RUN package=cuda-compat-13-0_580.178.04-1ubuntu1_amd64.deb \
    && mkdir /tmp/compat \
    && { /usr/lib/apt/apt-helper -qq -o Acquire::https::Timeout=30 -o Acquire::Retries=2 download-file \
         "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/$package" \
         /tmp/compat/compat.deb \
         SHA256:f7e29a545c1334bb5ca4b054213de9c9ceb70f8bf561aa214075020c4e0b60cf \
         && dpkg-deb -x /tmp/compat/compat.deb /tmp/compat \
         && mv /tmp/compat/usr/local/cuda-13.0/compat /usr/local/cuda-compat \
         || echo "built without CUDA's forward-compatibility libraries: GPUs need driver 580"; } \
    && rm -rf /tmp/compat

# Two wheels ship compiled files of their own.
RUN find "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" -name '*.pyc' -delete

# Every cache can be written by a root user without capabilities and under a read-only root file
# system with /tmp as tmpfs. The orchestrator moves those of its programs beside the output.
ENV CUDA_HOME=/usr/local/cuda \
    PATH=/usr/local/cuda/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONPYCACHEPREFIX=/tmp/cache/pycache \
    HF_HUB_OFFLINE=1 \
    HF_DATASETS_OFFLINE=1 \
    HF_DATASETS_CACHE=/tmp/cache/huggingface/datasets \
    HF_MODULES_CACHE=/tmp/cache/huggingface/modules \
    HF_ASSETS_CACHE=/tmp/cache/huggingface/assets \
    HF_XET_CACHE=/tmp/cache/huggingface/xet \
    TRITON_CACHE_DIR=/tmp/cache/triton \
    TORCH_EXTENSIONS_DIR=/tmp/cache/torch-extensions \
    TORCHINDUCTOR_CACHE_DIR=/tmp/cache/torch-inductor \
    FLASHINFER_WORKSPACE_BASE=/tmp/cache/flashinfer \
    VLLM_CACHE_ROOT=/tmp/cache/vllm \
    VLLM_CONFIG_ROOT=/tmp/cache/vllm-config \
    CUDA_CACHE_PATH=/tmp/cache/cuda \
    NUMBA_CACHE_DIR=/tmp/cache/numba \
    MPLCONFIGDIR=/tmp/cache/matplotlib \
    XDG_CACHE_HOME=/tmp/cache/xdg \
    XDG_CONFIG_HOME=/tmp/cache/xdg-config \
    TOKENIZERS_PARALLELISM=false \
    TRL_EXPERIMENTAL_SILENCE=1 \
    VLLM_NO_USAGE_STATS=1 \
    DO_NOT_TRACK=1 \
    WANDB_MODE=offline

WORKDIR /app
COPY README.md LICENSE* NOTICE* ./
# The tournament's sentences, where a copy is there; README.md lets the line match without one.
COPY README.md tournamen[t] tournament/
COPY mock_env_server mock_env_server
COPY recipes recipes
COPY miner miner
COPY entrypoint entrypoint

# The smoke test: what cannot be imported fails the build, not the tournament.
RUN export PYTHONDONTWRITEBYTECODE=1 \
    && python -c "import torch, vllm, trl, transformers, deepspeed, peft, accelerate" \
    && python -c "import miner.__main__, miner.training.run, entrypoint.main, entrypoint.watchdog" \
    && python -m entrypoint --help >/dev/null \
    && mkdir -p /app/checkpoints /cache \
    && rm -rf /tmp/cache

ENTRYPOINT ["python", "-m", "entrypoint"]
