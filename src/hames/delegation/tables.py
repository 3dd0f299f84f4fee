"""The tables of the ledger as the code sees them: what a row holds, its checksum, and what of a damaged one can still be told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hames.content.messages import clean
from hames.store import checksum

Kind = Literal["text", "int", "real", "blob"]


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    :param columns: names and kinds of what a row says, in the order in which values are given; the checksum covers all of it.
    """

    name: str
    columns: tuple[tuple[str, Kind], ...]

    def selected(self, alias: str) -> str:
        """The columns for a query: texts as bytes, so that one which is no UTF-8 any more hides no other row."""
        names = [f"CAST({alias}.{name} AS BLOB)" if kind == "text" else f"{alias}.{name}" for name, kind in self.columns]
        return ", ".join((*names, f"{alias}.crc"))

    @property
    def width(self) -> int:
        """How many values :meth:`selected` gives."""
        return len(self.columns) + 1

    def values(self, *given: Any) -> tuple[Any, ...]:
        """What is written: the values as the database keeps them, and their checksum."""
        kept = tuple(self._kept(value, kind) for value, (_, kind) in self._paired(given))
        return (*kept, self._sum(kept))

    @staticmethod
    def _kept(value: Any, kind: Kind) -> Any:
        return clean(value) if kind == "text" else float(value) if kind == "real" else value

    def inserted(self, head: str = "INSERT", source: str = "") -> str:
        """The statement that adds a row; the parameters from ``?1`` on are :meth:`values`.

        :param source: what comes after the values, for example a condition.
        """
        names = ", ".join((*(name for name, _ in self.columns), "crc"))
        marks = ", ".join(f"?{n + 1}" for n in range(self.width))
        return f"{head} INTO {self.name} ({names}) SELECT {marks} {source}"

    def read(self, row: Sequence[Any]) -> tuple[list[Any], bool]:
        """The values of a row, and whether they are as they were written. What is of another kind becomes an empty value of its own."""
        sound = True
        found: list[Any] = []
        for value, (_, kind) in self._paired(row[:-1]):
            read = self._read(value, kind)
            sound = sound and read is not None
            found.append(EMPTY[kind] if read is None else read)
        return found, sound and row[-1] == self._sum(found)

    @staticmethod
    def _read(value: Any, kind: Kind) -> Any:
        if kind == "text":
            return value.decode("utf-8", "replace") if isinstance(value, bytes) else None
        if kind == "blob":
            return value if isinstance(value, bytes) else None
        if kind == "real":
            return float(value) if isinstance(value, int | float) else None
        return value if isinstance(value, int) else None

    def _paired(self, values: Sequence[Any]) -> list[tuple[Any, tuple[str, Kind]]]:
        return list(zip(values, self.columns, strict=True))

    def _sum(self, values: Sequence[Any]) -> int:
        parts: list[bytes] = []
        for value, (_, kind) in self._paired(values):
            part = value if kind == "blob" else value.encode() if kind == "text" else repr(value).encode()
            parts += (f"{len(part)}:".encode(), part)
        return checksum(*parts)


EMPTY: dict[Kind, Any] = {"text": "", "blob": b"", "real": 0.0, "int": 0}


def table(name: str, columns: str) -> Table:
    """A table of a line as in ``task:text n:int``."""
    pairs = [column.split(":") for column in columns.split()]
    return Table(name, tuple((each, kind) for each, kind in pairs))  # pyright: ignore[reportArgumentType]


THREADS = table("threads", "id:text runner:text created:real")
TASKS = table("tasks", "id:text thread:text parent:text root:text session:text call:text depth:int created:real digest:text spec:blob")
STATES = table(
    "states",
    "task:text state:text waiting:text admission:text liveness:text publication:text cause:text owner:text epoch:int updated:real",
)
ATTEMPTS = table("attempts", "task:text n:int runner:text digest:text owner:text epoch:int native:text began:real ended:real exit:text")
OUTCOMES = table("outcomes", "task:text settled:real data:blob")
RECEIPTS = table("receipts", "task:text n:int kind:text time:real data:blob")
STOPS = table("stops", "task:text cause:text requested:real")


def encoded(members: dict[str, Any]) -> bytes:
    """The durable form of an object.

    :raises ValueError: if it is no JSON, for example a number that is none.
    """
    return clean(json.dumps(members, ensure_ascii=False, allow_nan=False, separators=(",", ":"))).encode()
