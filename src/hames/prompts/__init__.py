"""Prompts: ordered sections with strict variables, assembled anew for each request."""

from hames.prompts.service import PROMPTS, Assemble, Assembly, Facts, Prompts, Section, prompts

__all__ = ["PROMPTS", "Assemble", "Assembly", "Facts", "Prompts", "Section", "prompts"]
