"""How good a policy is: the grader's episodes and rules, baselines, and honest statistics."""
