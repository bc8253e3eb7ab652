"""Reinforcement learning in long-tailed worlds."""

__version__ = "0.1.0"
