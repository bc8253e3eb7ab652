"""The momentum-boosted episodic memory, for any recurrent agent: PyTorch, and Triton where there is a GPU."""

from longtail.memory.boosted import BoostedMemory, MemoryConfig

__all__ = ["BoostedMemory", "MemoryConfig"]
