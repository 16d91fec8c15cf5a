"""`python -m tests.stub_vllm serve MODEL ...` with the flags that the miner gives `vllm serve`.

Any other flag is an error, as it would be there. With STUB_VLLM_JOURNAL in its environment it
appends to that file: "start PID", "push LABEL" and "sample LABEL".
"""

import argparse
import json
import os

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mock_env_server.serving import bind
from tests.stub_vllm.app import StubVllm
from tests.stub_vllm.serving import server_of


def journal(line: str) -> None:
    """Append one line to the journal, if there is one."""
    if name := os.environ.get("STUB_VLLM_JOURNAL"):
        with open(name, "a") as file:
            file.write(f"{line}\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.stub_vllm")
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--data-parallel-size", type=int, default=1)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--gpu-memory-utilization", type=float)
    parser.add_argument("--weight-transfer-config", type=json.loads)
    parser.add_argument("--worker-extension-cls")
    parser.add_argument("--logprobs-mode", default="raw_logprobs")
    parser.add_argument("--max-logprobs", type=int)
    parser.add_argument("--enable-prompt-tokens-details", action="store_true")
    parser.add_argument("--language-model-only", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    dtype = getattr(torch, flags.dtype)
    stub = StubVllm(
        AutoModelForCausalLM.from_pretrained(flags.model, dtype=dtype).eval(),
        AutoTokenizer.from_pretrained(flags.model),
        name=flags.model,
        seed=flags.seed,
        logprobs_mode=flags.logprobs_mode,
        max_model_len=flags.max_model_len,
        data_parallel_size=flags.data_parallel_size,
        backend=(flags.weight_transfer_config or {}).get("backend"),
        dev_mode=os.environ.get("VLLM_SERVER_DEV_MODE") == "1",
        journal=journal,
    )
    sock = bind(flags.host, flags.port)
    journal(f"start {os.getpid()}")
    print(f"stub vLLM listening on port {sock.getsockname()[1]}", flush=True)
    server_of(stub).run(sockets=[sock])
    stub.close()


main()
