"""Compiled plans on record against the planner: docs/ascend-agreement.md."""
