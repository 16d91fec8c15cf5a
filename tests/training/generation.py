"""Stand-ins for what the trainer generates with: a server that dies, a colocated vLLM."""

import copy
import time
from contextlib import ExitStack
from types import SimpleNamespace

import torch

from miner.distributed.launch import free_port
from tests.builders import build_qwen3, build_tokenizer
from tests.stub_vllm.app import StubVllm
from tests.stub_vllm.engine_double import EngineDouble
from tests.stub_vllm.serving import stub_in_thread


class Server:
    """A stub on one port that can die and come back with the base model."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._serving = ExitStack()
        self.past: list[StubVllm] = []
        self.port = free_port()
        self.start()

    def start(self) -> None:
        self.stub = StubVllm(build_qwen3(), build_tokenizer())
        self.url = self._serving.enter_context(stub_in_thread(self.stub, self.port))

    def die(self) -> None:
        self.past.append(self.stub)
        self._serving.close()

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.stub.calls]


class ColocatedDouble:
    """`ColocatedLLM` that sleeps: it refuses what the real one would."""

    def __init__(self, model):
        self.log = []
        self.awake = set()
        self._trained = model
        held = copy.deepcopy(model).requires_grad_(False)
        for weight in held.parameters():
            weight.zero_()  # asleep at first
        self._engine = EngineDouble(held, max_model_len=model.config.max_position_embeddings)
        self.llm = SimpleNamespace(
            llm_engine=SimpleNamespace(
                add_request=self._add,
                step=self._step,
                abort_request=self._engine.abort_request,
                has_unfinished_requests=self._engine.has_unfinished_requests,
                engine_core=SimpleNamespace(shutdown=lambda: self.log.append("shutdown")),
            ),
            wake_up=self._wake,
            sleep=self._sleep,
        )

    @torch.no_grad()
    def sync_weights(self):
        self.log.append("sync")
        self.awake.add("weights")
        self._engine.model.load_state_dict(self._trained.state_dict())

    def _wake(self, tags):
        self.log.append(f"wake {tags[0]}")
        self.awake |= set(tags)

    def _sleep(self, level):
        self.log.append(f"sleep {level}")
        self.awake.clear()

    def _step(self):
        time.sleep(0.02)  # long enough for a caller to leave in the middle of it
        assert self.awake == {"weights", "kv_cache"}, "the engine is asleep"
        return self._engine.step()

    def _add(self, *request):
        assert self.awake == {"weights", "kv_cache"}, "the engine is asleep"
        return self._engine.add_request(*request)
