"""Evaluation: the grader's episodes and rules, baselines, and honest statistics."""
