"""The orchestrator, free of torch: contract -> hardware -> plan -> supervisord -> exit status."""
