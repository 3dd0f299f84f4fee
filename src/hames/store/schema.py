"""The tables. Changes only ever add: a column with a default, a table, an index.

``v`` is the version of the row's format, ``crc`` a CRC-32 over what the row says (see the code that writes it).
"""

from __future__ import annotations

SESSIONS = (
    """CREATE TABLE IF NOT EXISTS sessions (
        sid INTEGER PRIMARY KEY,
        cwd TEXT NOT NULL,
        parent TEXT NOT NULL DEFAULT '',
        owner TEXT NOT NULL DEFAULT '',
        epoch INTEGER NOT NULL DEFAULT 0,
        v INTEGER NOT NULL DEFAULT 1,
        crc INTEGER NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS events (
        sid INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        time REAL NOT NULL,
        type TEXT NOT NULL,
        data BLOB NOT NULL,
        v INTEGER NOT NULL DEFAULT 1,
        crc INTEGER NOT NULL,
        PRIMARY KEY (sid, seq)
    ) WITHOUT ROWID""",
    # codec 0: bytes as they are; 1: zlib; 2: the digest of a blob. A fragment of a request, or its head or tail.
    """CREATE TABLE IF NOT EXISTS fragments (
        sid INTEGER NOT NULL,
        n INTEGER NOT NULL,
        codec INTEGER NOT NULL,
        marker_at INTEGER NOT NULL,
        data BLOB NOT NULL,
        v INTEGER NOT NULL DEFAULT 1,
        crc INTEGER NOT NULL,
        PRIMARY KEY (sid, n)
    ) WITHOUT ROWID""",
    # groups = the first `kept` of the request before + fragments first … first + count - 1
    """CREATE TABLE IF NOT EXISTS requests (
        sid INTEGER NOT NULL,
        n INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        kept INTEGER NOT NULL,
        first INTEGER NOT NULL,
        count INTEGER NOT NULL,
        head INTEGER NOT NULL,
        tail INTEGER NOT NULL,
        separator BLOB NOT NULL,
        marker BLOB NOT NULL,
        marked INTEGER NOT NULL,
        adapter TEXT NOT NULL,
        reason TEXT NOT NULL,
        sha256 BLOB NOT NULL,
        v INTEGER NOT NULL DEFAULT 1,
        crc INTEGER NOT NULL,
        PRIMARY KEY (sid, n)
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS quarantine (
        source TEXT NOT NULL,
        sid INTEGER NOT NULL,
        n INTEGER NOT NULL,
        why TEXT NOT NULL,
        data BLOB
    )""",
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "INSERT OR IGNORE INTO meta VALUES ('schema_version', '1')",
)

CONTROL = (
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "INSERT OR IGNORE INTO meta VALUES ('schema_version', '1')",
)
