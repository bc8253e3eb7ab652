"""The momentum-boosted episodic memory, for any recurrent agent; pure PyTorch, knows neither worlds nor IMPALA."""

from longtail.memory.boosted import BoostedMemory, MemoryConfig

__all__ = ["BoostedMemory", "MemoryConfig"]
