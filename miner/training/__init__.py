"""How it learns: settings, the task stream, trainer assembly and callbacks around TRL's GRPO."""
