"""Processes of other people: started in a group of their own, and ended with all that came of them."""

from hames.supervise.group import Group

__all__ = ["Group"]
