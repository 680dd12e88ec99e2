"""The architectures the plugin serves: those whose files its tests write, load and run. llama.cpp knows many more."""

from __future__ import annotations

GENERATING = ("llama", "qwen2", "qwen3", "gemma3")
ENCODING = ("bert",)
