"""What faces may listen to while tasks are under way; told at the scope of whoever started them. What is to last stands in the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from hames.kernel import Notice


@dataclass(frozen=True, slots=True, eq=False)
class TaskBegan(Notice):
    """A task has been taken on; its intent is on disk.

    :param parent: the task that it was started from; empty for none.
    """

    task: str
    title: str
    runner: str
    parent: str
    depth: int


@dataclass(frozen=True, slots=True, eq=False)
class TaskSaid(Notice):
    """A task tells how far it is."""

    task: str
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class TaskEnded(Notice):
    """A task has ended; its outcome is on disk. Each one that began ends."""

    task: str
    title: str
    status: str
    code: str
    parent: str
    depth: int
