"""The miner: plays environments with a language model, learns by GRPO, publishes the best model."""
