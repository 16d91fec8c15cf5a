"""One thread for torch: tests run on small machines beside others, and tiny models gain nothing."""

import torch

torch.set_num_threads(1)
