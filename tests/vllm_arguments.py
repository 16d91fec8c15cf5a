"""vLLM's own parser's reading of `vllm serve` commands: `python -m tests.vllm_arguments`.

Reads a JSON list of commands without "vllm" and prints [port, engines, logprobs mode] of each. Runs
with the Python that has vLLM; without a GPU that parses only when told that it is for a CPU.
"""

import json
import sys

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
serve = ServeSubcommand()
serve.subparser_init(parser.add_subparsers(dest="subparser"))
parsed = []
for words in json.load(sys.stdin):
    arguments = parser.parse_args(words)
    serve.validate(arguments)
    parsed.append([arguments.port, arguments.data_parallel_size, arguments.logprobs_mode])
print(json.dumps(parsed))
