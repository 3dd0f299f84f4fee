"""One file, one writer thread, group commit."""

import asyncio
import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from hames.content.errors import DamagedError, FencedError, StorageError, StorageFullError
from hames.store import Database

INSERT = "INSERT INTO items (n, text) VALUES (?, ?)"

READ = """
    import apsw, json, sys
    print(json.dumps(list(apsw.Connection(sys.argv[1]).execute("SELECT n, text FROM items ORDER BY rowid"))))
"""


def commits(wal: Path) -> int:
    """How many transactions a WAL holds: frames that carry the size of the database (sqlite.org/fileformat2.html, 4.1)."""
    data = wal.read_bytes()
    size = int.from_bytes(data[8:12], "big")
    return sum(data[place + 4 : place + 8] != bytes(4) for place in range(32, len(data), 24 + size))


def rows(path: Path) -> list[Any]:
    connection = apsw.Connection(str(path))
    try:
        assert connection.pragma("integrity_check") == "ok"
        return list(connection.execute("SELECT n, text FROM items ORDER BY n"))
    finally:
        connection.close()


# tickets


async def test_another_process_sees_what_was_awaited(database: Database, children: Any) -> None:
    await database.write(INSERT, (1, "one"))
    seen = await asyncio.to_thread(children.run, READ, database.path)
    assert json.loads(seen) == [[1, "one"]]


async def test_a_ticket_may_be_awaited_by_many_and_again(database: Database) -> None:
    ticket = database.run(lambda connection: "value")

    async def wait() -> Any:
        return await ticket

    assert await asyncio.gather(*(wait() for _ in range(5))) == ["value"] * 5
    assert await ticket == "value"


async def test_a_waiter_that_is_cancelled_takes_no_write_with_it(database: Database) -> None:
    ticket = database.write(INSERT, (1, "one"))

    async def wait() -> None:
        await ticket

    waiter = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait((waiter,))
    assert waiter.cancelled()
    await ticket
    assert database.query("SELECT n FROM items") == [(1,)]


async def test_a_write_that_nobody_awaits_reaches_the_disk(database: Database) -> None:
    ticket = database.write(INSERT, (1, "one"))
    async with asyncio.timeout(10):
        while not ticket.done:
            await asyncio.sleep(0.005)
    assert database.query("SELECT n FROM items") == [(1,)]


async def test_order_is_kept(database: Database) -> None:
    def insert(n: int) -> Callable[[apsw.Connection], None]:
        return lambda connection: connection.execute(INSERT, (n, f"item {n}"))  # type: ignore[return-value]

    order = [(n * 7919) % 501 for n in range(501)]
    for place, n in enumerate(order):
        if place % 3:
            database.write(INSERT, (n, f"item {n}"))
        else:
            database.run(insert(n))
        if place % 50 == 0:
            await asyncio.sleep(0)
            database.kick()
    database.write("CREATE TABLE log AS SELECT n FROM items")
    await database.write("DELETE FROM items WHERE n = 3")
    await database.write(INSERT, (3, "again"))
    assert [n for (n,) in database.query("SELECT n FROM log")] == list(range(501))
    assert database.query("SELECT text FROM items WHERE n = 3") == [("again",)]


async def test_many_writers_share_few_transactions(database: Database) -> None:
    async def write(n: int) -> None:
        for step in range(5):
            await database.write(INSERT, (n * 5 + step, f"{n}.{step}"))

    wal = database.path.with_name("items.db-wal")
    before = commits(wal)
    await asyncio.gather(*(write(n) for n in range(100)))
    assert database.query("SELECT COUNT(*) FROM items") == [(500,)]
    assert commits(wal) - before <= 15


async def test_the_log_file_stays_bounded(database: Database) -> None:
    text = "x" * 4000
    for block in range(50):
        for n in range(100):
            ticket = database.write(INSERT, (block * 100 + n, f"{text}{block}.{n}"))
        await ticket
    pages = database.path.with_name("items.db-wal").stat().st_size / 4120
    assert pages < 3000  # of 5,000 and more that were written
    assert database.query("SELECT COUNT(*) FROM items") == [(5000,)]


# failures


async def test_a_bad_operation_fails_alone(database: Database) -> None:
    good = [database.write(INSERT, (n, f"item {n}")) for n in range(5)]
    bad = database.write(INSERT, (2, "twice"))
    worse = database.write("INSERT INTO nowhere VALUES (1)")
    good += [database.write(INSERT, (n, f"item {n}")) for n in range(5, 10)]
    for ticket in good:
        await ticket
    for ticket in (bad, worse):
        with pytest.raises(StorageError):
            await ticket
    assert [n for (n,) in database.query("SELECT n FROM items ORDER BY n")] == list(range(10))


async def test_a_function_that_fails_leaves_nothing_of_it(database: Database) -> None:
    def half(connection: apsw.Connection) -> None:
        connection.execute(INSERT, (1, "half"))
        raise StorageError("no further")

    with pytest.raises(StorageError, match="no further"):
        await database.run(half)
    assert database.query("SELECT * FROM items") == []


@pytest.mark.parametrize(
    "operation",
    [
        "database.run(lambda connection: 1 / 0)",
        "database.run(lambda connection: open('/nowhere/at/all'))",
        "database.write('INSERT INTO items VALUES (?, ?)', (1, object()))",
        "database.write('INSERT INTO items VALUES (?, ?)', (1 << 70, 'big'))",
        "database.write('INSERT INTO items VALUES (?, ?)', (1, '\\ud800'))",
        "database.write('INSERT INTO items VALUES (?, ?)', (1,))",
    ],
    ids=["arithmetic", "file", "type", "overflow", "surrogate", "bindings"],
)
def test_an_error_that_is_not_of_the_database_fails_alone(tmp_path: Path, children: Any, items: tuple[str, ...], operation: str) -> None:
    program = """
        import asyncio, sys
        from pathlib import Path
        from hames.store import Database

        async def main():
            database = Database(Path(sys.argv[1]), [sys.argv[2]])
            bad = eval(sys.argv[3])
            good = database.write("INSERT INTO items VALUES (7, 'good')")
            try:
                await asyncio.wait_for(bad, 5)
                print("no error")
            except TimeoutError:
                print("the ticket never ends", flush=True)
                import os; os._exit(0)
            except Exception:
                pass
            await asyncio.wait_for(good, 5)
            print(database.query("SELECT n FROM items"))
            await asyncio.wait_for(database.close(), 5)

        asyncio.run(main())
    """
    assert children.run(program, tmp_path / "items.db", items[0], operation) == "[(7,)]\n"


async def test_a_write_that_must_change_and_does_not_is_fenced(database: Database) -> None:
    await database.write(INSERT, (1, "one"))
    before = database.write(INSERT, (2, "two"))
    fenced = database.write("UPDATE items SET text = 'x' WHERE n = 99", must_change=True)
    after = database.write("UPDATE items SET text = 'changed' WHERE n = 1", must_change=True)
    with pytest.raises(FencedError) as caught:
        await fenced
    assert caught.value.code == "FENCED"
    assert caught.value.remedy
    await before
    await after
    assert database.query("SELECT * FROM items ORDER BY n") == [(1, "changed"), (2, "two")]


async def test_reading_cannot_write(database: Database) -> None:
    with pytest.raises(StorageError):
        database.query("INSERT INTO items VALUES (1, 'one')")
    assert database.query("SELECT * FROM items") == []


def test_after_a_full_disk_other_errors_are_not_called_full(tmp_path: Path, children: Any, items: tuple[str, ...]) -> None:
    program = """
        import asyncio, resource, sys
        from pathlib import Path
        from hames.store import Database

        def limit(size):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

        async def main():
            database = Database(Path(sys.argv[1]), [sys.argv[2]])
            insert = "INSERT INTO items VALUES (?, ?)"
            await database.write(insert, (1, "one"))
            limit(100_000)
            for n, text in ((2, "x" * 200_000), (3, "three")):
                try:
                    await database.write(insert, (n, text))
                except Exception as error:
                    print(type(error).__name__, error.code)
            limit(resource.RLIM_INFINITY)
            await database.write(insert, (2, "two"))
            try:
                await database.write(insert, (2, "twice"))
            except Exception as error:
                print(type(error).__name__)
            print(database.query("SELECT n, text FROM items"))
            await database.close()

        asyncio.run(main())
    """
    full, other, stored = children.run(program, tmp_path / "items.db", items[0]).splitlines()
    assert full == "StorageFullError STORAGE_FULL"
    assert stored == "[(1, 'one'), (2, 'two'), (3, 'three')]"
    assert other == "StorageError"


# opening and closing


async def test_closing_commits_what_is_queued(tmp_path: Path, items: tuple[str, ...]) -> None:
    database = Database(tmp_path / "items.db", items)
    for n in range(300):
        database.write(INSERT, (n, f"item {n}"))
    await database.close()
    assert len(rows(database.path)) == 300


async def test_nothing_is_written_after_closing(tmp_path: Path, items: tuple[str, ...]) -> None:
    database = Database(tmp_path / "items.db", items)
    await database.close()
    await database.close()
    with pytest.raises(StorageError):
        database.write(INSERT, (1, "one"))
    with pytest.raises(StorageError):
        database.run(lambda connection: None)
    assert rows(database.path) == []


def test_closing_leaves_no_thread_and_no_descriptor(tmp_path: Path, items: tuple[str, ...], opened: Callable[[], dict[str, str]]) -> None:
    async def use() -> None:
        database = Database(tmp_path / "items.db", items)
        await database.write(INSERT, (1, "one"))
        database.query("SELECT * FROM items")
        database.write(INSERT, (2, "two"))
        await database.close()

    threads, files = threading.enumerate(), opened()
    asyncio.run(use())
    assert threading.enumerate() == threads
    assert opened() == files


def test_a_file_that_cannot_be_opened_leaves_no_descriptor(
    tmp_path: Path, items: tuple[str, ...], opened: Callable[[], dict[str, str]]
) -> None:
    path = tmp_path / "items.db"
    path.write_bytes(b"this is no database " * 1000)

    async def use() -> None:
        with pytest.raises(DamagedError):
            Database(path, items)

    threads, files = threading.enumerate(), opened()
    asyncio.run(use())
    assert threading.enumerate() == threads
    assert opened() == files


async def test_a_directory_that_is_missing_is_a_storage_error(tmp_path: Path, items: tuple[str, ...]) -> None:
    with pytest.raises(StorageError):
        Database(tmp_path / "missing" / "items.db", items)


@pytest.mark.parametrize("version", ["3.51.2", "3.40.1", "3.7.0", "3.9.99"])
async def test_a_sqlite_that_can_corrupt_the_log_is_refused(
    tmp_path: Path, items: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    with pytest.raises(StorageError, match=version.replace(".", r"\.")) as caught:
        Database(tmp_path / "items.db", items)
    assert "3.54.1" in caught.value.remedy
    assert not (tmp_path / "items.db").exists()


@pytest.mark.parametrize("version", ["3.51.3", "3.54.1", "3.100.0", "4.0.0"])
async def test_a_sound_sqlite_is_taken(tmp_path: Path, items: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    await Database(tmp_path / "items.db", items).close()


async def test_a_full_disk_is_one_error_for_all_that_waits(database: Database) -> None:
    def fail(connection: apsw.Connection) -> None:
        raise apsw.FullError("database or disk is full")

    tickets = [database.run(fail) for _ in range(3)]
    for ticket in tickets:
        with pytest.raises(StorageFullError) as caught:
            await ticket
        assert caught.value.code == "STORAGE_FULL"
        assert caught.value.remedy


# several processes

WRITER = """
    import asyncio, sys
    from pathlib import Path
    from hames.store import Database

    path, schema, first, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

    async def main():
        database = Database(path, [schema])
        print("ready", flush=True)
        sys.stdin.readline()

        async def write(start):
            for n in range(first + start, first + count, 20):
                await database.write("INSERT INTO items VALUES (?, ?)", (n, f"item {n}"))
                print(n, flush=True)

        def count_up(connection):
            ((value,),) = connection.execute("SELECT text FROM items WHERE n = -1")
            connection.execute("UPDATE items SET text = ? WHERE n = -1", (str(int(value) + 1),))

        async def counter():
            for _ in range(50):
                await database.run(count_up)

        await asyncio.gather(counter(), *(write(start) for start in range(20)))
        await database.close()

    asyncio.run(main())
"""


async def test_two_processes_write_one_file_at_once(database: Database, children: Any, items: tuple[str, ...]) -> None:
    await database.write(INSERT, (-1, "0"))

    def together() -> list[int]:
        both = [children.start(WRITER, database.path, items[0], first, 400) for first in (0, 400)]
        for child in both:
            assert child.stdout.readline() == "ready\n"
        for child in both:
            child.stdin.write("go\n")
            child.stdin.flush()
        ended = []
        for child in both:
            _, errors = child.communicate(timeout=60)
            assert errors == ""
            ended.append(child.returncode)
        return ended

    assert await asyncio.to_thread(together) == [0, 0]
    assert rows(database.path) == [(-1, "100"), *((n, f"item {n}") for n in range(800))]


def test_a_killed_writer_loses_nothing_that_was_confirmed(tmp_path: Path, children: Any, items: tuple[str, ...]) -> None:
    path = tmp_path / "items.db"

    async def begin() -> None:
        database = Database(path, items)
        await database.write(INSERT, (-1, "0"))
        await database.close()

    asyncio.run(begin())
    child = children.start(WRITER, path, items[0], 0, 1_000_000)
    child.stdin.write("go\n")
    child.stdin.flush()
    assert child.stdout.readline() == "ready\n"
    confirmed = [child.stdout.readline() for _ in range(3000)]
    child.send_signal(signal.SIGKILL)
    rest, errors = child.communicate(timeout=10)
    assert (child.returncode, errors) == (-signal.SIGKILL, "")
    confirmed += [line for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    stored = {n for n, _ in rows(path)}
    assert {int(line) for line in confirmed} <= stored
    assert len(confirmed) >= 3000

    async def go_on() -> list[Any]:
        database = Database(path, items)
        await database.write(INSERT, (-2, "after"))
        found = database.query("SELECT text FROM items WHERE n = -2")
        await database.close()
        return found

    assert asyncio.run(go_on()) == [("after",)]
