"""Delegation: one piece of work, whoever does it, with one record, one budget and one outcome."""

from hames.delegation.plugin import DELEGATION, Delegation

__all__ = ["DELEGATION", "Delegation"]
