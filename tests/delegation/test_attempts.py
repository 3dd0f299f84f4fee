"""What may follow an attempt, judged over random histories, and whether two goals are taken for the same work."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hames.delegation import report
from hames.delegation.attempts import CARRIED, MARK, OVER, Matter, Rules, advice, carried, ended, goal, kind, matters, place
from hames.delegation.failures import Refused
from hames.delegation.goal import alike, normal
from hames.delegation.outcome import Outcome, failed
from hames.delegation.records import TaskRecord
from hames.delegation.spec import TaskSpec
from hames.delegation.strikes import Strikes, Work

CODES = {"too-long": "MAX_TOKENS", "refusal": "REFUSAL", "aborted": "CANCELLED", "interrupted": "HOST_DIED", "error": "MODEL_FAILED"}
STRIKING = ("error", "lacks", "too-long", "refusal", "poor")
OPEN = (*STRIKING, "aborted", "interrupted", "unknown")
ROLES = ("implement", "design")
GOALS = ("Repair the old clock of the tower", "Translate Finnish poems", "Feed seven hungry parrots")
HERE = place(TaskSpec("x"))


def value(outcome: str = "done", **more: str) -> dict[str, str]:
    return {"outcome": outcome, "result": "what there is", **more}


def outcome(what: str, text: str = "words") -> Outcome | None:
    """How an attempt ends of which this became."""
    if what == "running":
        return None
    if what in ("done", "lacks"):
        said = value() if what == "done" else value("failed", error="E", missing="a hammer")
        return Outcome("completed", text=text, value=said, schema_valid=True)
    return failed(CODES[what], "as it was", text=text)


def attempt(n: int, what: str | Outcome | None = "error", text: str = GOALS[0], role: str = "implement", **more: Any) -> TaskRecord:
    name, thread, damaged = f"t{n:04}", more.pop("thread", ""), more.pop("damaged", ())
    spec = TaskSpec(text, role=role, schema=report.SCHEMA, **more)
    end = outcome(what) if isinstance(what, str) else what
    members: dict[str, Any] = dict.fromkeys(TaskRecord.__slots__, "")
    members |= {"id": name, "thread": thread or name, "root": name, "session": "s", "call": f"c{n}", "spec": spec, "state": "settled"}
    members |= {"depth": 1, "epoch": 1, "created": 0.0, "updated": 0.0, "settled": 0.0}
    members |= {"outcome": end, "attempts": (), "receipts": (), "damaged": damaged}
    return TaskRecord(**members)


def nobody(_: TaskRecord) -> bool:
    return False


# random histories


class Tried(NamedTuple):
    """An attempt, as the model of the rules knows it."""

    what: str
    text: str
    role: str
    because: str = ""


def tried(machine: Any) -> bool:
    return bool(machine.records)


def runs(machine: Any) -> bool:
    return any(record.outcome is None for record in machine.records)


def spaced(text: str) -> str:
    return text.replace(" ", " \n ")


class Chains(RuleBasedStateMachine):
    """Chains of attempts, with a small model of what may come next."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Rules()
        self.judge = Strikes(None, self.limits)  # pyright: ignore[reportArgumentType]
        self.records: list[TaskRecord] = []
        self.chains: list[list[Tried]] = []
        self.names: list[list[int]] = []
        self.heard: set[str] = set()
        self.lifted: list[int] = []
        self.words: dict[tuple[str, str], int] = {}  # which chain had a role and a text last

    def counted(self, n: int, *, poor: bool = False) -> list[Tried]:
        """The attempts of a chain that count: since a person spoke, and since the work itself was done."""
        chain = list(self.chains[n])
        if poor and chain[-1].what == "done":
            chain[-1] = chain[-1]._replace(what="poor")
        kept: list[Tried] = []
        for n_th, each in enumerate(chain):
            if n_th < self.lifted[n]:
                continue
            kept.append(each)
            failed_before = [other.text for other in kept[:-1] if other.what in OPEN]
            if n_th and each.what == "done" and all(text == each.text for text in failed_before):
                kept.clear()
        return kept

    def standing(self, n: int) -> Tried:
        """The attempt of a chain that says what may come next."""
        last = self.chains[n][-1]
        still = [each for each in self.counted(n) if each.what in OPEN]
        return still[-1] if last.what == "done" and still else last

    def found(self) -> list[Matter]:
        return matters(self.records, lambda record: record.id in self.heard)

    def expected(self, n: int, role: str, text: str, because: str, missing: bool) -> str:
        """The code that another attempt at a chain is refused with; empty where it may begin."""
        if any(each[:3] == ("refusal", text, role) for chain in self.chains for each in chain):
            return "SAME_WORK"
        code = self.of_chain(n, role, text, because, missing)
        others = [number for number in range(len(self.chains)) if number != n]
        if not code and any(self.chains[each][-1][:2] == ("running", text) for each in others):
            return "STILL_RUNNING"
        still = [each for each in others if any(one.what in OPEN for one in self.counted(each))]
        if not code and any(one.text == text for each in still for one in self.chains[each]):
            return "ATTEMPT_UNNAMED"
        return code

    def of_chain(self, n: int, role: str, text: str, because: str, missing: bool) -> str:
        last, stands = self.chains[n][-1], self.standing(n)
        if last.what == "running":
            return "STILL_RUNNING"
        if (because == "poor" and not missing) or (stands.what == "done" and because != "poor"):
            return "REASON_NEEDED"
        if sum(each.what in STRIKING for each in self.counted(n, poor=because == "poor")) >= self.limits.strikes:
            return "STRUCK_OUT"
        if not any(each is stands for each in self.counted(n)):
            return ""
        if stands.what == "aborted" and because != "accident":
            return "REASON_NEEDED"
        if stands.what == "aborted" and any(each.because == "accident" for each in self.counted(n)):
            return "STRUCK_OUT"
        if stands.what == "too-long" and stands.text == text:
            return "SAME_WORK"
        if stands.what == "lacks" and role == stands.role:
            return "TOOL_LACKING"
        if stands.what == "error" and role == stands.role and sum(each.text == text for each in self.counted(n)) > self.limits.retries:
            return "SAME_WORK"
        return ""

    def put(self, n: int, what: str, text: str, role: str, because: str, missing: bool, *, named: bool = True) -> None:
        number = len(self.records)
        after = f"t{self.names[n][-1]:04}" if named else ""
        self.words[role, text] = n
        points = ("a roof",) if missing else ()
        self.records.append(attempt(number, what, text, role, after=after, because=because, missing=points))
        self.chains[n].append(Tried(what, text, role, because))
        self.names[n].append(number)

    @rule(what=st.sampled_from(("done", "running", "lacks", *CODES)), text=st.sampled_from(GOALS), role=st.sampled_from(ROLES))
    def begins(self, what: str, text: str, role: str) -> None:
        n = self.words.get((role, text), len(self.chains))
        if n == len(self.chains):
            self.chains.append([])
            self.names.append([])
            self.lifted.append(0)
        self.put(n, what, text, role, "", False, named=False)

    @precondition(tried)
    @rule(
        data=st.data(),
        what=st.sampled_from(("done", "running", "lacks", *CODES)),
        text=st.sampled_from(GOALS),
        role=st.sampled_from(ROLES),
        because=st.sampled_from(("", "", "poor", "accident")),
        missing=st.booleans(),
    )
    def follows(self, data: Any, what: str, text: str, role: str, because: str, missing: bool) -> None:
        n: int = data.draw(st.integers(0, len(self.chains) - 1))
        names: list[int] = self.names[n]
        name = f"t{data.draw(st.sampled_from(names)):04}"
        work = Work(role, text, HERE, name, because, ("a roof",) if missing else ())
        try:
            judged = self.judge._judged(self.found(), work)
            code = ""
            assert judged is not None and [record.id for record in judged.attempts] == [f"t{each:04}" for each in names]
        except Refused as error:
            code = error.code
        assert code == self.expected(n, role, text, because, missing)
        if not code:
            if because == "poor" and self.chains[n][-1].what == "done":
                self.chains[n][-1] = self.chains[n][-1]._replace(what="poor")
            self.put(n, what, text, role, because, missing)

    @rule()
    def speaks(self) -> None:
        """A person speaks: all that has ended counts no more."""
        self.heard |= {record.id for record in self.records if record.outcome is not None}
        self.lifted = [next((n for n, each in enumerate(chain) if each.what == "running"), len(chain)) for chain in self.chains]

    @precondition(runs)
    @rule(data=st.data(), what=st.sampled_from(("done", "lacks", *CODES)))
    def ends(self, data: Any, what: str) -> None:
        """One that ran comes to its end."""
        running = [n for n, record in enumerate(self.records) if record.outcome is None]
        number: int = data.draw(st.sampled_from(running))
        spec = self.records[number].spec
        self.records[number] = attempt(number, what, spec.prompt, spec.role, after=spec.after, because=spec.because, missing=spec.missing)
        for n, names in enumerate(self.names):
            if number in names:
                self.chains[n][names.index(number)] = Tried(what, spec.prompt, spec.role, spec.because)

    @invariant()
    def knows_what_became_of_each(self) -> None:
        found = self.found()
        assert [[record.id for record in matter.attempts] for matter in found] == [[f"t{n:04}" for n in names] for names in self.names]
        for number, (matter, chain, lifted) in enumerate(zip(found, self.chains, self.lifted, strict=True)):
            assert matter.kinds() == ["error" if each.what == "lacks" else each.what for each in chain]
            assert matter.lifted == lifted
            assert matter.strikes() == sum(each.what in STRIKING for each in self.counted(number))
            told = advice(matter, self.limits)
            assert (told == "") == (self.standing(number).what in ("done", "running"))
            assert (told == OVER) == (bool(told) and matter.strikes() >= self.limits.strikes)
            assert len(carried(matter, ()).encode()) <= CARRIED


TestChains = Chains.TestCase
TestChains.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        *(("MAX_TOKENS", "too-long"), ("BUDGET", "too-long"), ("SCHEMA_MISSED", "too-long"), ("REFUSAL", "refusal")),
        *(("CANCELLED", "aborted"), ("PARENT_ENDED", "aborted"), ("HOST_DIED", "interrupted"), ("OUTCOME_UNKNOWN", "unknown")),
        *(("MODEL_FAILED", "error"), ("INTERNAL", "error"), ("NOT_CLOSED", "error"), ("LAUNCH_FAILED", "error")),
    ],
)
def test_what_became_of_an_attempt_is_read_from_its_end(code: str, expected: str) -> None:
    assert kind(attempt(1, failed(code))) == expected


def test_an_end_that_cannot_be_read_is_unknown_and_ends_it() -> None:
    record = attempt(1, None, damaged=("outcome",))
    (matter,) = matters([record], nobody)
    assert matter.kinds() == ["unknown"] and matter.open and "ask the user" in advice(matter, Rules())


# what is carried along

HUGE = "x" * 1_000_000
HOSTILE = ("\ud800 half", "\x00\x1b[2J", MARK * 3, "é" * 5000, "🚀" * 5000, "{result}%s{0}", "\r\n" * 5000, "")


@pytest.mark.parametrize("text", [HUGE, *HOSTILE], ids=range(len(HOSTILE) + 1))
def test_what_is_carried_along_is_bounded_whatever_was_said(text: str) -> None:
    made = value("failed", result=text, error=text, missing=text, next=text)
    ends = [Outcome("completed", value=made, schema_valid=True), failed("MODEL_FAILED", text, text=text)]
    matter = Matter([attempt(n, end, missing=(text,)) for n, end in enumerate(ends)])
    for each in (Matter(matter.attempts[:1]), matter):
        told = carried(each, (text,))
        assert len(told.encode()) <= CARRIED
        assert advice(each, Rules()).isprintable() or text in HOSTILE
        assert all(len(ended(record)) < 600 for record in each.attempts)


@pytest.mark.parametrize("size", [10, 1_000, 10_000, 1_000_000])
def test_what_failed_and_what_lacked_is_carried_beside_a_long_result(size: int) -> None:
    made = value("failed", result="r" * size, error="E42", missing="a hammer")
    told = carried(Matter([attempt(1, Outcome("completed", value=made, schema_valid=True))]), ("the roof",))
    for found in ("E42", "a hammer", "the roof", "do not repeat what failed"):
        assert found in told


@pytest.mark.parametrize("count", [2, 6, 12, 100])
def test_the_last_attempt_and_what_is_missing_are_carried_after_many(count: int) -> None:
    made = [Outcome("completed", value=value("failed", result="r" * 1000, error=f"E{n}"), schema_valid=True) for n in range(count)]
    told = carried(Matter([attempt(n, each) for n, each in enumerate(made)]), ("the roof",))
    for found in (f"task t{count - 1:04}", "the roof", "do not repeat what failed"):
        assert found in told


def test_a_long_list_of_what_is_missing_leaves_room_for_what_failed() -> None:
    old = attempt(1, "done", missing=tuple("m" * 900 for _ in range(10)))
    told = carried(Matter([old, attempt(2, failed("MODEL_FAILED", "E42"), after=old.id)]), ("the roof",))
    assert "E42" in told and "the roof" in told


def test_what_was_carried_along_is_no_part_of_the_goal() -> None:
    assert goal(TaskSpec(f"{GOALS[0]}{MARK}old things{MARK}more")) == GOALS[0]


# whether goals are alike

CHINESE = ("修复登录页面在空密码时崩溃的错误", "把打印机的手册翻译成芬兰语")
JAPANESE = ("空のパスワードでログイン画面が落ちる不具合を直す", "プリンターの説明書をフィンランド語に訳す")
ARABIC = ("أصلح الخطأ في صفحة الدخول عند كلمة مرور فارغة", "ترجم دليل الطابعة إلى اللغة الفنلندية")
PARTS = (
    "fix",
    "`fix`",
    "src/a.py",
    "a.py",
    "parseHeader",
    "PARSER",
    "snake_case",
    "#12",
    "12",
    "the",
    "修复",
    "é",
    "ﬁx",
    "...",
    "",
    "`x  y`",
)
SENTENCES = st.lists(st.sampled_from(PARTS) | st.text(max_size=6), max_size=7).map(" ".join)


@settings(max_examples=300, deadline=None)
@given(SENTENCES)
def test_a_goal_is_like_itself_however_it_is_set(text: str) -> None:
    assert alike(text, text)
    assert alike(text, f"  {text}\n\n") and alike(f"\t{text}", text)
    assert normal(normal(text)) == normal(text)


@settings(max_examples=400, deadline=None)
@given(SENTENCES, SENTENCES)
def test_likeness_has_no_direction(one: str, other: str) -> None:
    assert alike(one, other) == alike(other, one)


def test_likeness_has_no_direction_where_a_word_is_quoted_once() -> None:
    one, other = "`fix` apples bananas", "fix cherries damsons"
    assert alike(one, other) == alike(other, one)


@pytest.mark.parametrize("change", [str.upper, str.lower, str.title, spaced], ids=["upper", "lower", "title", "space"])
@pytest.mark.parametrize("text", ["Repair parseHeader", "Repair parse_header", "Mend src/a.py", "Feed the parrots of the house"])
def test_case_and_space_make_no_difference_to_a_likeness(text: str, change: Any) -> None:
    other = f"{text.split()[1]} is broken" if "parrots" not in text else "parrots of this house"
    assert alike(text, other) and alike(change(text), other)


def test_width_makes_no_difference() -> None:
    assert alike("ＦＩＸ　ｔｈｅ　ｐａｒｓｅｒ", "fix the parser") and alike("ﬁx the parser", "fix the parser")


@pytest.mark.parametrize("one", [*CHINESE, *JAPANESE, *ARABIC])
def test_goals_in_other_scripts_are_like_themselves_and_not_like_others(one: str) -> None:
    every = (*CHINESE, *JAPANESE, *ARABIC)
    assert [other for other in every if alike(one, other)] == [one]
    assert alike(one, one + "。") and alike(f" {one}", one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("修复src/parser.py的错误", "请修正src/parser.py里的问题"),
        ("修复parse_header函数", "parse_header崩溃了"),
        ("parser.pyの不具合を直す", "parser.pyが落ちる"),
        ("修复 src/parser.py 的错误", "修正 src/parser.py 里的问题"),
    ],
)
def test_a_name_among_letters_without_spaces_is_seen(one: str, other: str) -> None:
    assert alike(one, other)


@pytest.mark.parametrize("other", ["请修复登录页面在空密码时崩溃的错误", "修复登录页面在空密码时崩溃的错误，谢谢"])
def test_a_polite_word_makes_no_other_goal_of_a_chinese_one(other: str) -> None:
    assert alike(CHINESE[0], other)


@pytest.mark.parametrize(
    "other",
    [
        "Crash in src/parser.py.",
        "Crash in ./src/parser.py",
        "Crash in (src/parser.py)",
        "Crash in parser.py",
        "Crash in src/parser.py:12",
        "Crash in 'src/parser.py'",
        "Crash in `src/parser.py`",
    ],
)
def test_a_file_is_the_same_however_it_is_written(other: str) -> None:
    assert alike("Mend src/parser.py", other)


def test_empty_goals_are_like_each_other_and_like_nothing_else() -> None:
    assert alike("", "") and alike("", " \n")
    assert not alike("", "fix the parser") and not alike("fix the parser", "")
    assert not alike("it", "this") and not alike("a b", "fix the parser")


# what it takes


def test_a_thousand_attempts_are_judged_at_once() -> None:
    records = [attempt(n, "error", f"{GOALS[n % 3]} {n // 3}", after=f"t{n - 1:04}" if n % 4 else "") for n in range(1000)]
    chain = [attempt(n, "aborted", after=f"t{n - 1:04}" if n else "") for n in range(1000)]
    judge = Strikes(None, Rules())  # pyright: ignore[reportArgumentType]
    began = time.perf_counter()
    for each, work in ((records, Work("implement", GOALS[0], HERE)), (chain, Work("implement", GOALS[0], HERE, "t0999", "accident"))):
        found = matters(each, nobody)
        try:
            judge._judged(found, work)
        except Refused:
            pass
        carried(found[-1], ())
    assert time.perf_counter() - began < 0.5


@pytest.mark.parametrize(
    "made",
    [
        "'a' * 10**6",
        "'修' * 10**6",
        "'fix it ' * 150_000",
        "'a_' * 500_000",
        "'a/' * 500_000",
        "'a.' * 500_000",
        "'`' * 10**6",
        "'1' * 10**6",
        "'aB' * 500_000",
    ],
)
def test_a_goal_of_a_megabyte_does_not_hang(made: str) -> None:
    code = f"from hames.delegation.goal import alike\nalike({made}, 'fix it')"
    try:
        subprocess.run([sys.executable, "-c", code], check=True, timeout=5, capture_output=True)
    except subprocess.TimeoutExpired:
        pytest.fail("it hangs")


def test_the_goal_of_an_attempt_is_what_was_asked_for_without_what_was_carried_along() -> None:
    first = attempt(1, "error")
    again = attempt(2, "error", f"{GOALS[1]}{MARK}{carried(matters([first], nobody)[0], ())}", after=first.id)
    assert goal(again.spec) == GOALS[1]
    assert not alike(goal(again.spec), GOALS[0]) and GOALS[1] == goal(first.spec).replace(GOALS[0], GOALS[1])
