"""Meters: what a part is given is taken from the whole, and nothing is counted twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hames.agents import AGENTS, AgentSpec
from hames.budget import Limits, Meter
from hames.content.errors import UsageError
from hames.content.finish import Usage

KINDS = ("steps", "tokens", "cost")


def price(usage: Usage) -> float | None:
    """An exact number of dollars: every token costs 1/64."""
    return usage.total / 64


def unknown(usage: Usage) -> float | None:
    return None


def never(usage: Usage) -> float | None:
    raise AssertionError("the price was asked where cost is not limited")


def spent(meter: Meter, tokens: int = 0, times: int = 1) -> None:
    for _ in range(times):
        meter.spend(Usage(input=tokens), price)


def lefts(meter: Meter) -> tuple[float | None, ...]:
    return tuple(meter.left(kind) for kind in KINDS)


# against a simple model, with exact numbers


@dataclass(eq=False)
class Node:
    """What is known of a meter: its limits, what was spent at it, and its parts."""

    meter: Meter
    limits: dict[str, Fraction | None]
    above: Node | None
    own: dict[str, Fraction] = field(default_factory=lambda: dict.fromkeys(KINDS, Fraction(0)))
    parts: list[Node] = field(default_factory=list)
    closed: bool = False
    lost: bool = False  # its cost is not known any more

    @property
    def depth(self) -> int:
        return 0 if self.above is None else self.above.depth + 1

    def total(self, kind: str) -> Fraction:
        return self.own[kind] + sum((part.total(kind) for part in self.parts), Fraction(0))

    def claim(self, kind: str) -> Fraction:
        """What nobody else may spend because of it."""
        limit = self.limits[kind]
        if self.closed:
            return self.total(kind)
        if limit is not None:
            return max(limit, self.total(kind))
        return self.own[kind] + sum((part.claim(kind) for part in self.parts), Fraction(0))

    def left(self, kind: str) -> Fraction | None:
        limit = self.limits[kind]
        if limit is None:
            return None if self.above is None else self.above.left(kind)
        if kind == "cost" and self.lost:
            return Fraction(0)
        return limit - self.own[kind] - sum((part.claim(kind) for part in self.parts), Fraction(0))

    def counts_cost(self) -> bool:
        return self.limits["cost"] is not None or (self.above is not None and self.above.counts_cost())

    def up(self) -> list[Node]:
        return [self, *(self.above.up() if self.above is not None else [])]


limit = st.none() | st.integers(0, 12)


class Tree(RuleBasedStateMachine):
    """Meters at three levels. Nobody spends more than is left, and a meter is closed when its parts are."""

    nodes: list[Node]

    @initialize(steps=limit, tokens=limit, cost=limit)
    def begin(self, steps: int | None, tokens: int | None, cost: int | None) -> None:
        self.nodes = [self.made(None, steps, tokens, cost)]

    def made(self, above: Node | None, steps: int | None, tokens: int | None, cost: int | None) -> Node:
        limits = Limits(steps, tokens, None if cost is None else cost / 64)
        meter = Meter(limits) if above is None else above.meter.part(limits)
        exact = {"steps": steps, "tokens": tokens, "cost": None if cost is None else Fraction(cost, 64)}
        return Node(meter, {kind: None if value is None else Fraction(value) for kind, value in exact.items()}, above)

    def open(self, deepest: int = 9) -> list[Node]:
        return [node for node in self.nodes if not node.closed and node.depth <= deepest]

    @rule(data=st.data(), steps=limit, tokens=limit, cost=limit)
    def part(self, data: st.DataObject, steps: int | None, tokens: int | None, cost: int | None) -> None:
        above = data.draw(st.sampled_from(self.open(1)))
        wanted = {"steps": steps, "tokens": tokens, "cost": None if cost is None else Fraction(cost, 64)}
        too_much = [kind for kind in KINDS if (each := wanted[kind]) is not None and (left := above.left(kind)) is not None and each > left]
        before = [lefts(node.meter) for node in self.nodes]
        if too_much:
            with pytest.raises(UsageError) as raised:
                self.made(above, steps, tokens, cost)
            assert raised.value.code == "BUDGET_EXCEEDED" and raised.value.remedy
            assert [lefts(node.meter) for node in self.nodes] == before
        else:
            node = self.made(above, steps, tokens, cost)
            above.parts.append(node)
            self.nodes.append(node)

    @rule(data=st.data(), tokens=st.integers(0, 5), answered=st.booleans(), known=st.integers(0, 7))
    def spend(self, data: st.DataObject, tokens: int, answered: bool, known: int) -> None:
        node = data.draw(st.sampled_from(self.open()))
        takes = {"steps": Fraction(answered), "tokens": Fraction(tokens), "cost": Fraction(tokens, 64)}
        if any((left := node.left(kind)) is not None and takes[kind] > left for kind in KINDS):
            return
        counts, lost = node.counts_cost(), known == 0
        cost = never if not counts else unknown if lost else price
        if answered:
            node.meter.spend(Usage(input=tokens), cost)
        else:
            node.meter.count(Usage(input=tokens), cost)
        for kind in KINDS if counts else KINDS[:2]:
            node.own[kind] += takes[kind]
        for each in node.up():
            each.lost = each.lost or (lost and counts and each.counts_cost())

    @precondition(lambda self: any(node.above is not None for node in self.open()))
    @rule(data=st.data(), twice=st.booleans())
    def close(self, data: st.DataObject, twice: bool) -> None:
        ready = [node for node in self.open() if node.above is not None and all(part.closed for part in node.parts)]
        node = data.draw(st.sampled_from(ready))
        for _ in range(2 if twice else 1):
            node.meter.close()
        node.closed = True

    @invariant()
    def what_is_left_and_spent_is_that_of_the_model(self) -> None:
        for node in getattr(self, "nodes", []):
            meter = node.meter
            assert meter.steps == node.total("steps") and meter.own_steps == node.own["steps"]
            assert meter.usage.total == node.total("tokens") and meter.own_usage.total == node.own["tokens"]
            if not node.counts_cost():
                assert meter.cost == 0.0
            elif node.lost:
                assert meter.cost is None
            else:
                assert meter.cost == node.total("cost")
            if not node.closed:
                for kind in KINDS:
                    assert meter.left(kind) == node.left(kind), (node.depth, kind)

    @invariant()
    def all_together_may_never_spend_more_than_the_whole(self) -> None:
        for node in getattr(self, "nodes", []):
            for kind in KINDS:
                if node.closed or node.limits[kind] is None or (kind == "cost" and node.lost):
                    continue
                may = Fraction(node.meter.left(kind) or 0) + sum((may_spend(part, kind) for part in node.parts), Fraction(0))
                assert may <= node.limits[kind] - node.total(kind)

    @invariant()
    def it_is_exhausted_where_nothing_is_left(self) -> None:
        for node in getattr(self, "nodes", []):
            if not node.closed:
                gone = any(left is not None and left <= 0 for left in (node.left(kind) for kind in KINDS))
                assert bool(node.meter.exhausted()) == gone


def may_spend(node: Node, kind: str) -> Fraction:
    """What may still be spent by a part, and all below it, out of what was set aside for these."""
    if node.closed:
        return Fraction(0)
    own = Fraction(0) if node.limits[kind] is None else max(Fraction(0), Fraction(node.meter.left(kind) or 0))
    return own + sum((may_spend(part, kind) for part in node.parts), Fraction(0))


Tree.TestCase.settings = settings(max_examples=70, stateful_step_count=25, deadline=None, derandomize=True, database=None)


class TestThreeLevels(Tree.TestCase):
    """Meters do as the simple model says."""


# parts


def test_a_part_is_taken_from_the_whole_and_never_added_to_it():
    whole = Meter(Limits(steps=10))
    first, second = whole.part(Limits(steps=4)), whole.part(Limits(steps=5))
    assert (whole.left("steps"), first.left("steps"), second.left("steps")) == (1, 4, 5)
    with pytest.raises(UsageError) as raised:
        whole.part(Limits(steps=2))
    assert str(raised.value) == "2 steps are asked for, and 1 are left" and raised.value.code == "BUDGET_EXCEEDED"
    spent(first, times=4)
    assert first.exhausted() and not second.exhausted() and whole.left("steps") == 1
    first.close()
    assert whole.left("steps") == 1
    spent(second)
    second.close()
    assert (whole.left("steps"), whole.steps, whole.own_steps) == (5, 5, 0)


def test_closing_twice_gives_back_once():
    whole = Meter(Limits(tokens=100))
    part, other = whole.part(Limits(tokens=40)), whole.part(Limits(tokens=40))
    for _ in range(3):
        part.close()
    assert whole.left("tokens") == 60 and other.left("tokens") == 40


def test_what_is_refused_for_one_kind_takes_nothing_of_another():
    whole = Meter(Limits(steps=10, tokens=10, cost=1.0))
    for limits in (Limits(steps=5, tokens=11), Limits(5, 5, 1.5)):
        with pytest.raises(UsageError):
            whole.part(limits)
    assert lefts(whole) == (10, 10, 1.0)


def test_a_part_without_limits_draws_on_what_is_not_set_aside():
    whole = Meter(Limits(steps=5))
    aside = whole.part(Limits(steps=3))
    loose = whole.part(Limits())
    below = loose.part(Limits())
    spent(below, times=2)
    assert (loose.left("steps"), below.left("steps")) == (0, 0)
    assert below.exhausted() == "the limit of 5 steps is reached (3 set aside)"
    assert not aside.exhausted()


def test_a_part_below_one_without_limits_is_set_aside_at_the_one_that_has_some():
    whole = Meter(Limits(steps=5))
    loose = whole.part(Limits())
    part = loose.part(Limits(steps=4))
    assert (whole.left("steps"), loose.left("steps")) == (1, 1)
    spent(part)
    part.close()
    loose.close()
    assert whole.left("steps") == 4


def test_three_equal_parts_of_a_cost_are_the_whole():
    """Thirds of 0.3 dollars are a tenth each, whatever floats make of that."""
    whole = Meter(Limits(cost=0.3))
    parts = [whole.part(Limits(cost=0.1)) for _ in range(3)]
    assert [part.left("cost") for part in parts] == [0.1] * 3
    assert whole.exhausted()


@pytest.mark.parametrize("count", [3, 7, 10, 49])
def test_a_cost_that_was_set_aside_and_given_back_is_whole_again(count):
    whole = Meter(Limits(cost=1.0))
    for _ in range(5):
        parts = [whole.part(Limits(cost=1.0 / (count + 1))) for _ in range(count)]
        for part in parts:
            part.close()
    whole.part(Limits(cost=1.0))


# more than there was


def test_one_answer_too_large_is_counted_whole_and_takes_nothing_of_others():
    whole = Meter(Limits(tokens=100))
    part, other = whole.part(Limits(tokens=10)), whole.part(Limits(tokens=20))
    spent(part, 35)
    assert (part.left("tokens"), other.left("tokens"), whole.left("tokens")) == (-25, 20, 45)
    part.close()
    assert whole.left("tokens") == 45


def test_where_a_grandchild_spends_too_much_what_its_siblings_may_spend_stays_set_aside():
    """The middle one is used up, but one of its parts still has something: the whole must not offer that to others."""
    whole = Meter(Limits(tokens=100))
    middle = whole.part(Limits(tokens=50))
    greedy, patient = middle.part(Limits(tokens=25)), middle.part(Limits(tokens=25))
    spent(greedy, 60)
    assert patient.left("tokens") == 25
    assert whole.left("tokens") == 100 - 60 - 25


def test_a_meter_inside_another_that_nothing_was_set_aside_for_takes_nothing_of_what_is_set_aside_for_others():
    """As that of a turn whose agent has limits of its own and a whole."""
    whole = Meter(Limits(steps=10))
    part = whole.part(Limits(steps=5))
    turn = Meter(Limits(steps=3), whole)
    spent(turn, times=3)
    assert part.left("steps") == 5
    assert whole.left("steps") == 10 - 3 - 5


async def test_turns_of_an_agent_with_limits_of_its_own_leave_what_is_set_aside_for_others(agents, tmp_path, script, calling):
    whole = Meter(Limits(steps=10))
    part = whole.part(Limits(steps=5))
    answers = [calling(("glob", {"pattern": f"{n}*"})) for n in range(2)]
    agent = await agents.create(AgentSpec(str(tmp_path), script(*answers, {"text": "done"}), limits=Limits(steps=3), whole=whole))
    end = await agent.run("go")
    assert (end.reason, end.steps, whole.steps) == ("completed", 3, 3)
    assert (part.left("steps"), whole.left("steps")) == (5, 2)
    await agents.dispose(agent)


async def test_an_agent_may_spend_no_more_than_its_whole_has(host, tmp_path, script, calling):
    whole = Meter(Limits(steps=2))
    answers = [calling(("glob", {"pattern": f"{n}*"})) for n in range(9)]
    agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), script(*answers), limits=Limits(steps=50), whole=whole))
    end = await agent.run("go")
    assert (end.reason, end.code, whole.steps) == ("budget", "BUDGET", 2)
    again = await agent.run("on")
    assert (again.reason, again.steps, whole.steps) == ("budget", 0, 2)
    await host.get(AGENTS).dispose(agent)


# cost that nobody knows


def test_where_cost_is_not_limited_nobody_asks_for_it():
    whole = Meter(Limits(steps=5))
    part = whole.part(Limits(tokens=50))
    part.spend(Usage(5), never)
    part.count(Usage(5), never)
    assert (part.cost, whole.cost, part.counts_cost) == (0.0, 0.0, False)


def test_cost_counts_only_where_it_is_limited_here_or_above():
    whole = Meter(Limits())
    middle = whole.part(Limits(cost=1.0))
    low = middle.part(Limits())
    low.spend(Usage(32), price)
    assert (low.cost, middle.cost, whole.cost) == (0.5, 0.5, 0.0)
    low.spend(Usage(1), unknown)
    assert (low.cost, middle.cost, whole.cost) == (None, None, 0.0)


def test_an_unknown_cost_stops_those_above_and_leaves_siblings_what_was_set_aside():
    whole = Meter(Limits(cost=1.0))
    lost, other = whole.part(Limits(cost=0.25)), whole.part(Limits(cost=0.5))
    lost.spend(Usage(1), unknown)
    assert "nobody knows how much is spent" in lost.exhausted() and "nobody knows how much is spent" in whole.exhausted()
    assert other.exhausted() == "" and other.left("cost") == 0.5
    lost.close()
    assert whole.left("cost") == 0.0 and whole.cost is None
    with pytest.raises(UsageError):
        whole.part(Limits(cost=0.1))
    other.spend(Usage(16), price)
    assert other.left("cost") == 0.25 and whole.cost is None


def test_an_answer_without_a_count_of_tokens_has_a_cost_that_nobody_knows():
    meter = Meter(Limits(cost=1.0))
    meter.spend(None, never)
    assert (meter.cost, meter.steps, meter.left("cost")) == (None, 1, 0.0)


def test_unknown_stays_unknown():
    meter = Meter(Limits(cost=1.0))
    meter.spend(Usage(1), unknown)
    meter.spend(Usage(1), price)
    assert meter.cost is None and meter.spent("cost") is None


# words


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(steps=1), "the limit of 1 steps is reached"),
        (Limits(tokens=64), "the limit of 64 tokens is reached (64 used)"),
        (Limits(cost=1.0), "the limit of $1 is reached ($1 spent)"),
    ],
)
def test_what_is_reached_is_said(limits, said):
    meter = Meter(limits)
    assert meter.exhausted() == ""
    spent(meter, 64)
    assert meter.exhausted() == said


@pytest.mark.parametrize(
    ("whole", "part", "said"),
    [
        (Limits(steps=2), Limits(steps=1), "the limit of 2 steps is reached (1 set aside)"),
        (Limits(tokens=128), Limits(tokens=64), "the limit of 128 tokens is reached (64 used, 64 set aside)"),
        (Limits(cost=2.0), Limits(cost=1.0), "the limit of $2 is reached ($1 spent, $1 set aside)"),
    ],
)
def test_what_is_set_aside_is_said_with_the_limit_that_it_uses_up(whole, part, said):
    meter = Meter(whole)
    child = meter.part(part)
    spent(meter, 64)
    assert meter.exhausted() == said and child.exhausted() == ""


def test_a_part_says_which_limit_above_it_is_reached():
    whole = Meter(Limits(steps=2))
    part = whole.part(Limits(tokens=1000))
    spent(whole, 1, times=2)
    assert part.exhausted() == "the limit of 2 steps is reached"


def test_near_a_limit_it_is_said_once():
    meter = Meter(Limits(steps=10, tokens=1000))
    spent(meter, 1, times=7)
    assert meter.warning() == ""
    spent(meter, 1)
    assert meter.warning().startswith("Your budget allows 2 more answers. Come to an end")
    spent(meter, 1)
    assert meter.warning() == ""


def test_what_was_set_aside_for_parts_counts_for_the_warning():
    meter = Meter(Limits(steps=10))
    meter.part(Limits(steps=9))
    assert "1 more answers" in meter.warning()


def test_all_limits_that_are_near_stand_in_one_warning():
    meter = Meter(Limits(steps=5, tokens=100, cost=1.5))
    spent(meter, 20, times=4)
    assert meter.warning().startswith("Your budget allows 1 more answers and 20 more tokens and $0.25 more.")


def test_a_single_answer_is_not_warned_of():
    assert Meter(Limits(steps=1)).warning() == ""
