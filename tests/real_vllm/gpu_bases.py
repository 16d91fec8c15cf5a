"""Made models of the pool in vLLM on a GPU: `python -m tests.real_vllm.gpu_bases`.

A line for each architecture: by how much the logprobs of its greedy replies differ from those of
transformers, at most, for the base, for weights that are sent, and for those sent after a sleep.
Exit status 1 where one is not as it should be.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from entrypoint.topology import NOT_SERVED
from tests.base_models.pool import MIXTURES, POOL, PoolBase, make_folder
from tests.real_vllm.models import assert_replies_of

AT_ONCE = 4


def made(base: PoolBase, top: Path) -> Path:
    """A folder with two models of different weights."""
    folder = top / base.bases[0]
    for seed, name in enumerate(("base", "sent")):
        make_folder(base, folder / name, served=True, seed=seed)
    return folder


def architecture(folder: Path) -> str:
    [name] = json.loads((folder / "base/config.json").read_text())["architectures"]
    return str(name)


def gap(folder: Path) -> float | str:
    """The largest of all three, or what went wrong."""
    out = folder / "replies.json"
    words = ("-m", "tests.real_vllm.pool_program", folder / "base", folder / "sent", out)
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-3000:])
        return f"exit status {done.returncode}"
    found = json.loads(out.read_text())
    try:
        return max(
            assert_replies_of(folder / name.split()[0], found[name])
            for name in ("base", "sent", "sent again")
        )
    except AssertionError as error:
        return f"other logprobs: {error}"


def main() -> None:
    with TemporaryDirectory() as top, ThreadPoolExecutor(AT_ONCE) as pool:
        folders = [made(base, Path(top)) for base in (*POOL, *MIXTURES)]
        folders = [folder for folder in folders if architecture(folder) not in NOT_SERVED]
        gaps = list(pool.map(gap, folders))
    for folder, found in zip(folders, gaps, strict=True):
        print(folder.name, found if isinstance(found, str) else f"{found:.4f}")
    right = [found for found in gaps if not isinstance(found, str)]
    print(f"{len(right)} of {len(gaps)} bases, logprob gap {max(right, default=0.0):.4f} at most")
    sys.exit(len(right) != len(gaps))


if __name__ == "__main__":
    main()
