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
TEXTS = frozenset({"cwd", "parent", "type", "data", "adapter", "reason"})
MISSES = 2000  # rows in a row that may be unreadable before the rest of a table is given up


def sound(table: str, row: dict[str, Any]) -> bool:
    """Whether a row matches its checksum."""
    with suppress(TypeError, AttributeError):
        match table:
            case "sessions":
                return row["crc"] == checksum(f"{row['sid']}|", row["cwd"], "|", row["parent"])
            case "events":
                return row["crc"] == checksum(f"{row['sid']}|{row['seq']}|{row['time']!r}|", row["type"], "|", row["data"])
            case "fragments":
                return row["crc"] == checksum(f"{row['sid']}|{row['n']}|{row['codec']}|{row['marker_at']}|", row["data"])
            case _:
                numbers = (row[name] for name in ("sid", "n", "seq", "kept", "first", "count", "head", "tail", "marked"))
                joined = "|".join(map(str, numbers))
                return row["crc"] == checksum(joined, row["adapter"], row["reason"], row["separator"], row["marker"], row["sha256"])
    return False


def valid(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def readable(source: apsw.Connection, table: str, sids: set[int]) -> Iterator[dict[str, Any]]:
    """The rows of a table, session by session, going round pages that cannot be read."""
    keys, columns = TABLES[table]
    # Text is read as bytes: it may be damaged.
    wanted = ", ".join(f"CAST({name} AS BLOB)" if name in TEXTS else name for name in columns)
    if len(keys) == 1:
        yield from _scan(source, f"SELECT {wanted} FROM {table} WHERE sid > ? ORDER BY sid", (), -1, columns, "sid")
        return
    for sid in sorted(sids):
        sql = f"SELECT {wanted} FROM {table} WHERE sid = ? AND {keys[1]} > ? ORDER BY {keys[1]}"
        yield from _scan(source, sql, (sid,), -1, columns, keys[1])


def _scan(
    source: apsw.Connection, sql: str, fixed: tuple[int, ...], last: int, columns: tuple[str, ...], key: str
) -> Iterator[dict[str, Any]]:
    misses = 0
    while misses < MISSES:
        try:
            for values in source.execute(sql, (*fixed, last)):
                row = dict(zip(columns, values, strict=True))
                last = row[key]
                misses = 0
                yield row
            return
        except apsw.Error:
            # The next key may stand on another page.
            misses += 1
            last += 1


def known_sessions(source: apsw.Connection) -> set[int]:
    """The numbers of all sessions that any table speaks of, as far as they can be read."""
    found: set[int] = set()
    for table in TABLES:
        last = -1
        with suppress(apsw.Error):
            while rows := list(source.execute(f"SELECT sid FROM {table} WHERE sid > ? ORDER BY sid LIMIT 1", (last,))):
                last = int(rows[0][0])
                found.add(last)
        last = 1 << 62
        with suppress(apsw.Error):
            while rows := list(source.execute(f"SELECT sid FROM {table} WHERE sid < ? ORDER BY sid DESC LIMIT 1", (last,))):
                last = int(rows[0][0])
                found.add(last)
    return found


def salvage(source_path: Path, target_path: Path) -> dict[str, dict[str, int]]:
    """Copy what is sound; say for each table how many rows were kept and how many were not."""
    source = apsw.Connection(str(source_path), flags=apsw.SQLITE_OPEN_READONLY)
    target = open_connection(target_path)
    for statement in SESSIONS:
        target.execute(statement)
    report: dict[str, dict[str, int]] = {}
    sids = known_sessions(source)
    with target:
        for table, (_, columns) in TABLES.items():
            counts = report[table] = {"kept": 0, "damaged": 0}
            for row in readable(source, table, sids):
                if sound(table, row):
                    counts["kept"] += 1
                    marks = ", ".join("?" * len(columns))
                    values = tuple(value.decode() if name in TEXTS - {"data"} and valid(value) else value for name, value in row.items())
                    target.execute(f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})", values)
                else:
                    counts["damaged"] += 1
                    data = row.get("data")
                    place = (table, row["sid"], row.get("seq", row.get("n", 0)), "checksum", data)
                    counts["damaged"] -= table == "events"  # counted as a hole
                    target.execute("INSERT INTO quarantine VALUES (?, ?, ?, ?, ?)", place)
        report["events"]["damaged"] += fill_holes(target)
    target.close()
    source.close()
    return report


def fill_holes(target: apsw.Connection) -> int:
    """Put a mark where an event is lost, so that a session is whole again and says what it lacks; return how many."""
    holes = 0
    for sid, last in list(target.execute("SELECT sid, MAX(seq) FROM events GROUP BY sid")):
        present = {seq for (seq,) in target.execute("SELECT seq FROM events WHERE sid = ?", (sid,))}
        for seq in range(last):
            if seq not in present:
                holes += 1
                crc = checksum(f"{sid}|{seq}|{0.0!r}|lost|", b"{}")
                target.execute(
                    "INSERT INTO events (sid, seq, time, type, data, crc) VALUES (?, ?, 0.0, 'lost', ?, ?)", (sid, seq, b"{}", crc)
                )
    return holes


def unsound(source_path: Path) -> list[tuple[str, int]]:
    """The records of a database that do not match their checksum, as (table, session)."""
    source = apsw.Connection(str(source_path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        sids = known_sessions(source)
        return [(table, row["sid"]) for table in TABLES for row in readable(source, table, sids) if not sound(table, row)]
    finally:
        source.close()


def main() -> None:
    """Salvage SOURCE into TARGET and print the report as JSON."""
    report = salvage(Path(sys.argv[1]), Path(sys.argv[2]))
    if not report["sessions"]["kept"]:
        sys.exit("no session in it can be read")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
