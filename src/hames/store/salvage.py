"""Salvaging a damaged database: what is sound is copied into a new file, the damaged one is kept.

Runs in a child process (``python -m hames.store.salvage SOURCE TARGET``), while no owner lives: a process that opens a database file
by another way would lose the locks that it holds on it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw

from hames.store.database import checksum, open_connection
from hames.store.schema import SESSIONS

TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sessions": (("sid",), ("sid", "cwd", "parent", "v", "crc")),
    "events": (("sid", "seq"), ("sid", "seq", "time", "type", "data", "v", "crc")),
    "fragments": (("sid", "n"), ("sid", "n", "codec", "marker_at", "data", "v", "crc")),
    "requests": (
        ("sid", "n"),
        (
            *("sid", "n", "seq", "kept", "first", "count", "head", "tail"),
            *("separator", "marker", "marked", "adapter", "reason", "sha256", "v", "crc"),
        ),
    ),
}
MISSES = 2000  # rows in a row that may be unreadable before the rest of a table is given up


def sound(table: str, row: dict[str, Any]) -> bool:
    """Whether a row matches its checksum."""
    with suppress(TypeError, AttributeError):
        match table:
            case "sessions":
                return row["crc"] == checksum(f"{row['sid']}|{row['cwd']}|{row['parent']}")
            case "events":
                return row["crc"] == checksum(f"{row['sid']}|{row['seq']}|{row['time']!r}|{row['type']}|", row["data"])
            case "fragments":
                return row["crc"] == checksum(f"{row['sid']}|{row['n']}|{row['codec']}|{row['marker_at']}|", row["data"])
            case _:
                numbers = (row[name] for name in ("sid", "n", "seq", "kept", "first", "count", "head", "tail", "marked"))
                joined = "|".join(map(str, numbers))
                return row["crc"] == checksum(joined, row["adapter"], row["reason"], row["separator"], row["marker"], row["sha256"])
    return False


def readable(source: apsw.Connection, table: str) -> Iterator[dict[str, Any]]:
    """The rows of a table in order of their key, going round pages that cannot be read."""
    keys, columns = TABLES[table]
    last: tuple[Any, ...] | None = None
    misses = 0
    while misses < MISSES:
        where = "" if last is None else f"WHERE ({', '.join(keys)}) > ({', '.join('?' * len(keys))})"
        sql = f"SELECT {', '.join(columns)} FROM {table} {where} ORDER BY {', '.join(keys)}"
        try:
            for values in source.execute(sql, last or ()):
                row = dict(zip(columns, values, strict=True))
                last = tuple(row[key] for key in keys)
                misses = 0
                yield row
            return
        except apsw.Error:
            if last is None or not all(isinstance(part, int) for part in last):
                return
            # The next key may stand on another page.
            misses += 1
            last = (*last[:-1], last[-1] + 1)


def salvage(source_path: Path, target_path: Path) -> dict[str, dict[str, int]]:
    """Copy what is sound; say for each table how many rows were kept and how many were not."""
    source = apsw.Connection(str(source_path), flags=apsw.SQLITE_OPEN_READONLY)
    target = open_connection(target_path)
    for statement in SESSIONS:
        target.execute(statement)
    report: dict[str, dict[str, int]] = {}
    with target:
        for table, (_, columns) in TABLES.items():
            counts = report[table] = {"kept": 0, "damaged": 0}
            for row in readable(source, table):
                if sound(table, row):
                    counts["kept"] += 1
                    marks = ", ".join("?" * len(columns))
                    target.execute(f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})", tuple(row.values()))
                else:
                    counts["damaged"] += 1
                    data = row.get("data")
                    place = (table, row["sid"], row.get("seq", row.get("n", 0)), "checksum", data)
                    target.execute("INSERT INTO quarantine VALUES (?, ?, ?, ?, ?)", place)
        fill_holes(target)
    target.close()
    source.close()
    return report


def fill_holes(target: apsw.Connection) -> None:
    """Put a mark where an event is lost, so that a session is whole again and says what it lacks."""
    for sid, last in list(target.execute("SELECT sid, MAX(seq) FROM events GROUP BY sid")):
        present = {seq for (seq,) in target.execute("SELECT seq FROM events WHERE sid = ?", (sid,))}
        for seq in range(last):
            if seq not in present:
                crc = checksum(f"{sid}|{seq}|{0.0!r}|lost|", b"{}")
                target.execute(
                    "INSERT INTO events (sid, seq, time, type, data, crc) VALUES (?, ?, 0.0, 'lost', ?, ?)", (sid, seq, b"{}", crc)
                )


def main() -> None:
    """Salvage SOURCE into TARGET and print the report as JSON."""
    print(json.dumps(salvage(Path(sys.argv[1]), Path(sys.argv[2]))))


if __name__ == "__main__":
    main()
