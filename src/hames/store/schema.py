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
    # The conversation that a task is a part of.
    """CREATE TABLE IF NOT EXISTS threads (
        id TEXT PRIMARY KEY,
        runner TEXT NOT NULL,
        created REAL NOT NULL,
        v INTEGER NOT NULL DEFAULT 1,
        crc INTEGER NOT NULL
    ) WITHOUT ROWID""",
    # One piece of work; never changed. parent and root are tasks, session and call say who asked for it.
    """CREATE TABLE IF NOT EXISTS tasks (
        id TEXT PRIMARY KEY,
        thread TEXT NOT NULL,
        parent TEXT NOT NULL,
        root TEXT NOT NULL,
        session TEXT NOT NULL,
        call TEXT NOT NULL,
        depth INTEGER NOT NULL,
        created REAL NOT NULL,
        digest TEXT NOT NULL,
        spec BLOB NOT NULL,
        v INTEGER NOT NULL DEFAULT 1,
        crc INTEGER NOT NULL
    ) WITHOUT ROWID""",
    # What is known of it now, and who drives it; only that owner, in that epoch, may change it.
    """CREATE TABLE IF NOT EXISTS states (
        task TEXT PRIMARY KEY,
        state TEXT NOT NULL,
        waiting TEXT NOT NULL,
        admission TEXT NOT NULL,
        liveness TEXT NOT NULL,
        publication TEXT NOT NULL,
        cause TEXT NOT NULL,
        owner TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        updated REAL NOT NULL,
        v INTEGER NOT NULL DEFAULT 1,
        crc INTEGER NOT NULL
    ) WITHOUT ROWID""",
    # One launch of it. native is the name of its conversation at the runner, exit how it ended.
    """CREATE TABLE IF NOT EXISTS attempts (
        task TEXT NOT NULL,
        n INTEGER NOT NULL,
        runner TEXT NOT NULL,
        digest TEXT NOT NULL,
        owner TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        native TEXT NOT NULL,
        began REAL NOT NULL,
        ended REAL NOT NULL,
        exit TEXT NOT NULL,
        v INTEGER NOT NULL DEFAULT 1,
        crc INTEGER NOT NULL,
        PRIMARY KEY (task, n)
    ) WITHOUT ROWID""",
    # How it ended; written once and never changed. Receipts come later and change nothing of it.
    """CREATE TABLE IF NOT EXISTS outcomes (
        task TEXT PRIMARY KEY,
        settled REAL NOT NULL,
        data BLOB NOT NULL,
        v INTEGER NOT NULL DEFAULT 1,
        crc INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS receipts (
        task TEXT NOT NULL,
        n INTEGER NOT NULL,
        kind TEXT NOT NULL,
        time REAL NOT NULL,
        data BLOB NOT NULL,
        v INTEGER NOT NULL DEFAULT 1,
        crc INTEGER NOT NULL,
        PRIMARY KEY (task, n)
    ) WITHOUT ROWID""",
    # Somebody wants it to end: asked for, and heard by whoever drives it. That it has ended says its outcome.
    """CREATE TABLE IF NOT EXISTS stops (
        task TEXT PRIMARY KEY,
        cause TEXT NOT NULL,
        requested REAL NOT NULL,
        acknowledged REAL NOT NULL DEFAULT 0,
        v INTEGER NOT NULL DEFAULT 1,
        crc INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS tasks_of_session ON tasks (session)",
    "CREATE INDEX IF NOT EXISTS tasks_of_parent ON tasks (parent)",
    "CREATE INDEX IF NOT EXISTS tasks_of_thread ON tasks (thread)",
    "CREATE INDEX IF NOT EXISTS states_open ON states (publication)",
)
