"""TRL's fused head by its Triton kernels against torch's own operations, in value and gradient.

`TRITON_INTERPRET=1 python -m tests.head_kernels`, with a Python that has Triton: on a CPU.
"""

import torch
from trl.kernels import chunked_logprob
from trl.kernels.chunked_logprob import ChunkedLogProbFunction

assert "Interpreted" in type(chunked_logprob._forward_kernel).__name__, "no TRITON_INTERPRET=1"
torch.manual_seed(0)
hidden = torch.randn(5, 16, requires_grad=True)
weight = torch.randn(2500, 16, requires_grad=True)  # two chunks, the second of two blocks
targets = torch.randint(0, 2500, (5,))
found = []
for triton in (True, False):
    chunked_logprob._use_triton = lambda device, use=triton: use
    logprobs, entropies, *_ = ChunkedLogProbFunction.apply(
        hidden, weight, None, targets, 0.7, 1250, None, 1.0, ("entropy",)
    )
    loss = (logprobs.exp() - 0.1 * entropies).sum()
    found.append([logprobs, entropies, *torch.autograd.grad(loss, (hidden, weight))])
for kernel, own in zip(*found, strict=True):
    torch.testing.assert_close(kernel, own, rtol=1e-4, atol=1e-5)
whole = (hidden @ weight.T / 0.7).log_softmax(-1)
chosen = whole.gather(1, targets[:, None])[:, 0]
torch.testing.assert_close(found[0][0], chosen, rtol=1e-4, atol=1e-5)
