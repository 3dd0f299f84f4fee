"""Notices, questions and calls that others wrap."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest

from hames.kernel import Around, Ask, Context, Host, Notice, State, plugin


@dataclass(frozen=True)
class Said(Notice):
    words: Any = ""


@dataclass(frozen=True)
class Question(Ask[Any]):
    text: str = ""


@dataclass(frozen=True)
class Call(Around[str]):
    name: str = "call"


@dataclass(frozen=True)
class Inner:
    items: list[int]


@plugin()
def blank(ctx, config):
    pass


@plugin()
def listens(ctx, config):
    """Append the name to the log whenever something is said."""
    log, name = config
    ctx.on(Said, lambda _: log.append(name))


def mounted(host: Host, **options: Any) -> Context:
    return host.context(host.mount(blank, **options))


# who hears


async def test_a_listener_hears_the_events_of_its_scope_and_below(host: Host) -> None:
    left, right = host.scope(key="left"), host.scope(key="right")
    below = host.scope(left, "below")
    log: list[str] = []
    for name, scope in (("host", None), ("left", left), ("right", right), ("below", below)):
        host.mount(listens, (log, name), id=name, scope=scope)
    heard = {}
    for name, scope in (("host", None), ("left", left), ("right", right), ("below", below)):
        log.clear()
        host.ctx.emit(Said(), at=scope)
        heard[name] = set(log)
    assert heard == {
        "host": {"host"},
        "left": {"host", "left"},
        "right": {"host", "right"},
        "below": {"host", "left", "below"},
    }


async def test_a_context_speaks_in_its_own_scope(host: Host) -> None:
    scope = host.scope()
    log: list[str] = []
    host.mount(listens, (log, "inside"), id="inside", scope=scope)
    host.ctx.emit(Said())
    assert log == []
    mounted(host, scope=scope).emit(Said())
    host.ctx.at(scope).emit(Said())
    assert log == ["inside", "inside"]


async def test_a_listener_hears_its_own_kind_of_event_only(host: Host) -> None:
    @dataclass(frozen=True)
    class Other(Notice):
        pass

    log: list[str] = []
    host.mount(listens, (log, "said"))
    host.ctx.emit(Other())
    assert log == []


async def test_a_listener_leaves_with_its_mount_or_by_hand(host: Host) -> None:
    log: list[str] = []
    mount = host.mount(listens, (log, "mount"))
    effect = mounted(host).on(Said, lambda _: log.append("by hand"))
    host.ctx.emit(Said())
    await mount.stop()
    host.ctx.emit(Said())
    effect.withdraw()
    host.ctx.emit(Said())
    assert log == ["mount", "by hand", "by hand"]
    assert host.root_scope.listener_count == 0


async def test_a_new_listener_in_any_scope_of_the_chain_is_heard(host: Host) -> None:
    scope = host.scope()
    log: list[str] = []
    host.mount(listens, (log, "inner"), id="inner", scope=scope)
    host.ctx.emit(Said(), at=scope)
    host.mount(listens, (log, "outer"), id="outer")
    log.clear()
    host.ctx.emit(Said(), at=scope)
    assert log == ["inner", "outer"]


# in which order


async def test_listeners_are_called_by_order_then_row_then_sequence(host: Host) -> None:
    log: list[str] = []

    @plugin()
    def row(ctx, name):
        ctx.on(Said, lambda _: log.append(f"{name} late"), order=1)
        ctx.on(Said, lambda _: log.append(f"{name} 1"))
        ctx.on(Said, lambda _: log.append(f"{name} 2"))
        ctx.on(Said, lambda _: log.append(f"{name} early"), order=-1)

    host.mount(row, "b", id="b", rank=2)
    host.mount(row, "a", id="a", rank=1)
    host.ctx.emit(Said())
    assert log == ["a early", "b early", "a 1", "a 2", "b 1", "b 2", "a late", "b late"]


async def test_a_row_mounted_again_keeps_its_place_among_listeners(host: Host) -> None:
    log: list[str] = []
    rows = [host.mount(listens, (log, name), id=name, rank=rank) for rank, name in enumerate("abc")]
    await rows[0].replace()
    await rows[1].stop()
    host.mount(listens, (log, "b"), id="b", rank=1)
    host.ctx.emit(Said())
    assert log == ["a", "b", "c"]


async def test_order_does_not_depend_on_the_scope_of_the_listener(host: Host) -> None:
    scope = host.scope()
    log: list[str] = []
    host.mount(listens, (log, "inner"), id="inner", scope=scope, rank=1)
    host.mount(listens, (log, "outer"), id="outer", rank=2)
    host.mount(listens, (log, "first"), id="first", rank=0)
    host.ctx.emit(Said(), at=scope)
    assert log == ["first", "inner", "outer"]


async def test_moved_rows_are_called_in_their_new_order(host: Host) -> None:
    log: list[str] = []
    a, b = (host.mount(listens, (log, name), id=name, rank=rank) for rank, name in enumerate("ab"))
    host.ctx.emit(Said())
    host.reorder({a: 1, b: 0})
    host.ctx.emit(Said())
    assert log == ["a", "b", "b", "a"]


async def test_a_child_comes_after_its_parent_and_before_the_next_row(host: Host) -> None:
    log: list[str] = []

    @plugin()
    def parent(ctx, config):
        ctx.mount(listens, (log, "child"))
        ctx.on(Said, lambda _: log.append("parent"))

    host.mount(listens, (log, "next"), id="next", rank=2)
    host.mount(parent, rank=1)
    host.ctx.emit(Said())
    assert log == ["parent", "child", "next"]


# notices


@pytest.mark.parametrize(
    "make",
    [
        lambda: [1],
        lambda: {"a": {"b": [1]}},
        lambda: ([1], 2),
        lambda: {1},
        lambda: bytearray(b"1"),
        lambda: [Inner([1])],
        lambda: defaultdict(list, a=[1]),
    ],
    ids=["list", "nested dict", "tuple", "set", "bytearray", "dataclass", "defaultdict"],
)
async def test_each_listener_of_a_notice_has_its_own_snapshot(host: Host, make: Any) -> None:
    def spoil(value: Any) -> None:
        match value:
            case list() | tuple():
                for item in value:
                    spoil(item)
            case dict():
                for item in value.values():
                    spoil(item)
            case Inner():
                spoil(value.items)
        if hasattr(value, "clear"):
            value.clear()

    seen: list[Any] = []
    for name in "ab":
        ctx = mounted(host, id=name)
        ctx.on(Said, lambda notice: seen.append(repr(notice.words)))
        ctx.on(Said, lambda notice: spoil(notice.words))
    words = make()
    host.ctx.emit(Said(words))
    assert seen == [repr(make())] * 2
    assert words == make()


async def test_a_live_object_in_a_notice_stays_itself(host: Host) -> None:
    event = asyncio.Event()
    seen: list[Any] = []
    mounted(host).on(Said, lambda notice: seen.append(notice.words[0]))
    host.ctx.emit(Said([event]))
    assert seen == [event]


async def test_a_notice_with_a_derived_member_is_heard(host: Host) -> None:
    @dataclass(frozen=True)
    class Counted(Notice):
        items: list[int]
        count: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "count", len(self.items))

    seen: list[int] = []
    mounted(host).on(Counted, lambda notice: seen.append(notice.count))
    host.ctx.emit(Counted([1, 2]))
    assert seen == [2]


async def test_a_raising_listener_is_recorded_and_the_next_is_told(host: Host) -> None:
    log: list[str] = []

    def broken(notice: Said) -> None:
        raise ValueError("broken")

    ctx = mounted(host)
    ctx.on(Said, broken)
    ctx.on(Said, lambda _: log.append("told"))
    host.ctx.emit(Said())
    assert log == ["told"]
    ((what, error),) = host.problems
    assert "Said" in what and str(error) == "broken"
    assert ctx.owner.state is State.ACTIVE


async def test_a_coroutine_function_is_no_listener_of_a_notice(host: Host) -> None:
    async def function(notice: Said) -> None:
        pass

    class Callable:
        async def __call__(self, notice: Said) -> None:
            pass

    ctx = mounted(host)
    for handler in (function, Callable()):
        with pytest.raises(TypeError, match="Said is a notice"):
            ctx.on(Said, handler)
    assert not ctx.owner.effects
    assert host.root_scope.listener_count == 0


async def test_a_plain_function_is_no_listener_of_a_question_or_a_call(host: Host) -> None:
    ctx = mounted(host)
    for event in (Question, Call):
        with pytest.raises(TypeError, match="must be a coroutine function"):
            ctx.on(event, lambda *_: None)
    assert not ctx.owner.effects


async def test_only_events_can_be_listened_to_and_notices_are_frozen(host: Host) -> None:
    @dataclass
    class Loose(Notice):
        words: str = ""

    ctx = mounted(host)
    with pytest.raises(TypeError, match="frozen"):
        ctx.on(Loose, lambda _: None)
    with pytest.raises(TypeError, match="not an event"):
        ctx.on(Inner, lambda _: None)
    assert not ctx.owner.effects


# questions


def answers(log: list[str], name: str, answer: Any) -> Any:
    async def handler(question: Question) -> Any:
        log.append(name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return handler


async def test_the_first_answer_counts_and_later_listeners_are_not_asked(host: Host) -> None:
    log: list[str] = []
    ctx = mounted(host)
    ctx.on(Question, answers(log, "later", "late"), order=1)
    ctx.on(Question, answers(log, "silent", None))
    ctx.on(Question, answers(log, "answers", "yes"))
    assert await host.ctx.ask(Question()) == "yes"
    assert log == ["silent", "answers"]


@pytest.mark.parametrize("answer", [False, 0, ""])
async def test_an_answer_that_is_false_is_an_answer(host: Host, answer: Any) -> None:
    ctx = mounted(host)
    ctx.on(Question, answers([], "false", answer))
    ctx.on(Question, answers([], "later", True))
    assert await host.ctx.ask(Question()) is answer


async def test_a_failing_answerer_is_recorded_and_skipped(host: Host) -> None:
    ctx = mounted(host)
    ctx.on(Question, answers([], "broken", ValueError("broken")))
    ctx.on(Question, answers([], "fine", "yes"))
    assert await host.ctx.ask(Question()) == "yes"
    assert [str(error) for _, error in host.problems] == ["broken"]


async def test_a_question_that_nobody_answers_is_none(host: Host) -> None:
    assert await host.ctx.ask(Question()) is None
    mounted(host).on(Question, answers([], "silent", None))
    assert await host.ctx.ask(Question()) is None


async def test_a_question_is_asked_in_the_given_scope(host: Host) -> None:
    scope = host.scope()
    mounted(host, scope=scope).on(Question, answers([], "inner", "inner"))
    mounted(host).on(Question, answers([], "outer", "outer"), order=1)
    assert await host.ctx.ask(Question()) == "outer"
    assert await host.ctx.ask(Question(), at=scope) == "inner"


async def test_cancelling_who_asks_is_not_taken_for_a_failing_answerer(host: Host) -> None:
    asked = asyncio.Event()

    async def slow(question: Question) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    mounted(host).on(Question, slow)
    asking = asyncio.create_task(host.ctx.ask(Question()))
    await asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not host.problems


# calls


async def inner(call: Call) -> str:
    return f"<{call.name}>"


async def test_a_call_runs_inside_its_listeners_the_first_outermost(host: Host) -> None:
    log: list[str] = []

    def wraps(name: str) -> Any:
        async def handler(call: Call, proceed: Any) -> str:
            log.append(f"{name} before")
            result = await proceed()
            log.append(f"{name} after")
            return f"{name}({result})"

        return handler

    host.mount(blank, id="unrelated")
    mounted(host, id="b", rank=2).on(Call, wraps("b"))
    mounted(host, id="a", rank=1).on(Call, wraps("a"))
    mounted(host, id="c", rank=3).on(Call, wraps("c"), order=-1)
    assert await host.ctx.around(Call(), inner) == "c(a(b(<call>)))"
    assert log == ["c before", "a before", "b before", "b after", "a after", "c after"]


async def test_a_call_without_listeners_is_the_inner_call(host: Host) -> None:
    assert await host.ctx.around(Call("bare"), inner) == "<bare>"


async def test_a_listener_may_change_the_call(host: Host) -> None:
    seen: list[str] = []

    async def changes(call: Call, proceed: Any) -> str:
        return await proceed(Call("changed"))

    async def looks(call: Call, proceed: Any) -> str:
        seen.append(call.name)
        return await proceed()

    ctx = mounted(host)
    ctx.on(Call, changes)
    ctx.on(Call, looks)
    assert await host.ctx.around(Call(), inner) == "<changed>"
    assert seen == ["changed"]


async def test_a_listener_may_proceed_again(host: Host) -> None:
    tries: list[str] = []

    async def retries(call: Call, proceed: Any) -> str:
        try:
            return await proceed()
        except ValueError:
            return await proceed()

    async def flaky(call: Call) -> str:
        tries.append(call.name)
        if len(tries) == 1:
            raise ValueError("flaky")
        return "done"

    mounted(host).on(Call, retries)
    assert await host.ctx.around(Call(), flaky) == "done"
    assert tries == ["call", "call"]


async def test_a_listener_that_does_not_proceed_answers_for_the_call(host: Host) -> None:
    async def short(call: Call, proceed: Any) -> str:
        return "short"

    async def unreachable(call: Call, proceed: Any) -> str:
        raise AssertionError("it was called")

    ctx = mounted(host)
    ctx.on(Call, short)
    ctx.on(Call, unreachable)
    assert await host.ctx.around(Call(), unreachable) == "short"  # type: ignore[arg-type]


async def test_what_the_inner_call_raises_passes_through_the_listeners_to_the_caller(host: Host) -> None:
    log: list[str] = []

    async def broken(call: Call) -> str:
        raise ValueError("inner")

    async def watches(call: Call, proceed: Any) -> str:
        try:
            return await proceed()
        except ValueError:
            log.append("seen")
            raise

    mounted(host).on(Call, watches)
    with pytest.raises(ValueError, match="inner"):
        await host.ctx.around(Call(), broken)
    assert log == ["seen"]
    assert not host.problems


async def test_what_a_listener_raises_reaches_the_caller(host: Host) -> None:
    async def refuses(call: Call, proceed: Any) -> str:
        raise PermissionError("refused")

    mounted(host).on(Call, refuses)
    with pytest.raises(PermissionError, match="refused"):
        await host.ctx.around(Call(), inner)


async def test_a_call_is_wrapped_by_the_listeners_of_the_given_scope(host: Host) -> None:
    scope = host.scope()

    async def wraps(call: Call, proceed: Any) -> str:
        return f"scoped {await proceed()}"

    mounted(host, scope=scope).on(Call, wraps)
    assert await host.ctx.around(Call(), inner) == "<call>"
    assert await host.ctx.around(Call(), inner, at=scope) == "scoped <call>"
