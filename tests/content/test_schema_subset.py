"""The subset of JSON Schema: what a schema may not say, what a value may not be, and that both are always told and never raised.

The library jsonschema is the second opinion on what a value violates; ``nullable``, which is not of JSON Schema, is left out there.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Generator
from contextlib import contextmanager
from math import inf, nan

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from hames.content.schema import DEEPEST, MOST, violations
from hames.content.schema_check import DEEPEST as DEEPEST_SCHEMA
from hames.content.schema_check import KEYWORDS, LONGEST, NOTES, mistakes
from hames.testing.sample import sample

QUICK = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@contextmanager
def at_most(seconds: float) -> Generator[None]:
    """Ends what takes longer, with an error."""

    def over(number, frame):
        raise AssertionError(f"it was not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def nested(depth: int, inner: object = 0) -> object:
    for _ in range(depth):
        inner = [inner]
    return inner


# what a schema may not say


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        # what is no schema at all
        (5, ["$: a schema is an object"]),
        ([], ["$: a schema is an object"]),
        (None, ["$: a schema is an object"]),
        (True, ["$: a schema is an object"]),
        ({"items": 5}, ["$.items: a schema is an object"]),
        ({"type": "array", "items": [{"type": "string"}]}, ["$.items: a schema is an object"]),
        ({"properties": {"a": None}}, ["$.a: a schema is an object"]),
        ({"properties": []}, ["$: properties is an object of schemas"]),
        ({"$defs": []}, ["$: $defs is an object of schemas"]),
        ({"additionalProperties": "no"}, ["$.additionalProperties: a schema is an object"]),
        # types
        ({"type": "date"}, ["$: there is no type 'date'"]),
        ({"type": []}, ["$: type names no type"]),
        ({"type": 5}, ["$: type names no type"]),
        ({"type": {}}, ["$: type names no type"]),
        ({"type": ["string", "text"]}, ["$: there is no type 'text'"]),
        ({"type": ["string", "string"]}, ["$: type names one type twice"]),
        ({"nullable": "yes"}, ["$: nullable is true or false"]),
        # values
        ({"enum": []}, ["$: enum has no value"]),
        ({"enum": "abc"}, ["$: enum has no value"]),
        ({"type": "string", "enum": ["a", 1, None]}, ["$: 1 of enum is not of type string", "$: None of enum is not of type string"]),
        ({"type": "integer", "enum": [True]}, ["$: True of enum is not of type integer"]),
        ({"type": "integer", "const": 1.5}, ["$: const is not of type integer"]),
        ({"type": "boolean", "const": 0}, ["$: const is not of type boolean"]),
        ({"enum": [1, 2], "const": 3}, ["$: const is none of enum"]),
        ({"enum": [1], "const": True}, ["$: const is none of enum"]),
        # rules of another type
        ({"type": "string", "minimum": 1}, ["$: minimum says nothing about string"]),
        ({"type": "integer", "maxLength": 1}, ["$: maxLength says nothing about integer"]),
        ({"type": "object", "items": {}}, ["$: items says nothing about object"]),
        ({"type": ["array", "null"], "required": []}, ["$: required says nothing about array or null"]),
        # bounds
        ({"type": "string", "minLength": -1}, ["$: minLength is a whole number from 0 on"]),
        ({"type": "string", "maxLength": True}, ["$: maxLength is a whole number from 0 on"]),
        ({"type": "array", "minItems": 1.5}, ["$: minItems is a whole number from 0 on"]),
        ({"type": "array", "maxItems": "3"}, ["$: maxItems is a whole number from 0 on"]),
        ({"type": "number", "minimum": "1"}, ["$: minimum is a number"]),
        ({"type": "number", "exclusiveMaximum": True}, ["$: exclusiveMaximum is a number"]),
        ({"type": "number", "maximum": None}, ["$: maximum is a number"]),
        ({"type": "array", "minItems": 2, "maxItems": 1}, ["$: minItems is more than maxItems, so nothing fits"]),
        ({"type": "string", "minLength": 2, "maxLength": 1}, ["$: minLength is more than maxLength, so nothing fits"]),
        ({"type": "number", "minimum": 2, "maximum": 1}, ["$: minimum is more than maximum, so nothing fits"]),
        ({"type": "number", "minimum": 2, "exclusiveMaximum": 2}, ["$: its bounds leave no number"]),
        ({"type": "number", "exclusiveMinimum": 2, "maximum": 2}, ["$: its bounds leave no number"]),
        ({"type": "number", "exclusiveMinimum": 2, "exclusiveMaximum": 2.0}, ["$: its bounds leave no number"]),
        # patterns
        ({"type": "string", "pattern": "("}, ["$: pattern is no regular expression: missing ), unterminated subpattern at position 0"]),
        ({"pattern": 5}, ["$: pattern is no regular expression: first argument must be string or compiled pattern"]),
        # names
        ({"required": "a"}, ["$: required is a list of names"]),
        ({"required": ["a"]}, ["$: 'a' is required and not in properties"]),
        (
            {"properties": {"a": {}}, "required": ["b", "a", "c"]},
            ["$: 'b' is required and not in properties", "$: 'c' is required and not in properties"],
        ),
        # alternatives
        ({"anyOf": []}, ["$: anyOf has no alternative"]),
        ({"oneOf": {}}, ["$: oneOf has no alternative"]),
        (
            {"oneOf": [{"type": "string"}, 5, {"if": {}}]},
            ["$.oneOf[1]: a schema is an object", "$.oneOf[2]: keyword 'if' is not supported"],
        ),
        # references
        ({"$ref": "#/$defs/gone"}, ["$: $ref '#/$defs/gone' points nowhere; it may point to '#/$defs/NAME'"]),
        ({"$ref": 5}, ["$: $ref 5 points nowhere; it may point to '#/$defs/NAME'"]),
        ({"$ref": "#"}, ["$: $ref '#' points nowhere; it may point to '#/$defs/NAME'"]),
        ({"$ref": "http://example.com/a"}, ["$: $ref 'http://example.com/a' points nowhere; it may point to '#/$defs/NAME'"]),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}, "type": "string", "enum": ["x"]}, ["$: enum, type beside $ref"]),
        ({"items": {"$defs": {}}}, ["$.items: $defs stands at the root only"]),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, ["$.a: it needs itself, so no value is ever whole"]),
    ],
)
def test_each_mistake_is_named_with_its_path(schema, said):
    assert mistakes(schema) == said


@pytest.mark.parametrize(
    "keyword",
    [
        "allOf",
        "not",
        "if",
        "then",
        "else",
        "format",
        "multipleOf",
        "patternProperties",
        "propertyNames",
        "prefixItems",
        "contains",
        "uniqueItems",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedProperties",
        "definitions",
        "$anchor",
        "$dynamicRef",
        "contentEncoding",
        "deprecated",
        "readOnly",
        "x-mine",
    ],
)
def test_a_keyword_that_is_not_enforced_is_refused_wherever_it_stands(keyword):
    schema = {
        keyword: 1,
        "properties": {"a": {keyword: 1}, "b": {"items": {keyword: 1}}},
        "additionalProperties": {"anyOf": [{}, {keyword: 1}]},
        "$defs": {"d": {"oneOf": [{keyword: 1}]}},
    }
    places = ["$", "$.a", "$.b.items", "$.d.oneOf[0]", "$.additionalProperties.anyOf[1]"]
    assert mistakes(schema) == [f"{place}: keyword {keyword!r} is not supported" for place in places]


def test_notes_are_passed_over_whatever_they_say():
    notes = {name: {"anything": [1, None]} for name in NOTES}
    assert mistakes({**notes, "type": "object", "properties": {"a": notes}}) == []
    assert violations({"a": 5}, {**notes, "type": "object", "properties": {"a": notes}}) == []
    assert not NOTES & KEYWORDS


def test_mistakes_of_many_kinds_are_told_at_once():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "minimum": 0, "pattern": "["},
            "b": {"type": "array", "items": {"type": "integer", "minimum": 3, "maximum": 2}, "minItems": 4, "maxItems": 1},
            "c": {"enum": [], "format": "date"},
            "d": {"$ref": "#/$defs/gone"},
        },
        "required": ["e"],
        "allOf": [],
    }
    found = mistakes(schema)
    assert len(found) == 9
    assert {line.split(":")[0] for line in found} == {"$", "$.a", "$.b", "$.b.items", "$.c", "$.d"}


@pytest.mark.parametrize(
    ("schema", "count"),
    [
        ({"type": "array", "minItems": -1, "maxItems": "x"}, 2),
        ({"minItems": -1, "minLength": -1, "minimum": "low"}, 3),
        ({"minimum": "low", "maximum": "high"}, 2),
        ({"minLength": -1, "minItems": 2, "maxItems": 1}, 2),
    ],
)
def test_every_wrong_bound_is_told_and_not_the_first_alone(schema, count):
    assert len(mistakes(schema)) == count


@pytest.mark.parametrize(
    "schema",
    [
        {"required": [[]]},
        {"required": [{}]},
        {"required": ["a", ["b"]], "properties": {"a": {}}},
        {"properties": {"a": {"required": [{"b": 1}]}}},
    ],
)
def test_a_name_that_is_no_text_is_a_mistake_and_not_a_crash(schema):
    assert any("required is a list of names" in line for line in mistakes(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 0.2, "maximum": 0.8},
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
        {"type": "string", "enum": ["long"], "maxLength": 1},
        {"const": 5, "maximum": 4},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "array", "items": False, "minItems": 1},
    ],
)
def test_rules_that_contradict_each_other_are_a_mistake(schema):
    assert mistakes(schema)


@pytest.mark.parametrize(
    "value", [nan, inf, -inf, {1, 2}, b"x", object(), pytest.param(10**5000, id="huge"), {"enum": [nan]}, {"default": object()}]
)
def test_what_is_no_json_is_no_schema(value):
    (said,) = mistakes({"properties": {"a": {"examples": [value]}}})
    assert said.startswith("$: it is no JSON: ")


def test_a_schema_that_holds_itself_is_no_json():
    schema: dict = {"type": "object", "properties": {}}
    schema["properties"]["again"] = schema
    (said,) = mistakes(schema)
    assert said.startswith("$: it is no JSON: ")


@pytest.mark.parametrize("depth", [DEEPEST_SCHEMA, 500, 5_000, 100_000])
def test_a_schema_may_have_only_so_many_levels(depth):
    schema: dict = {}
    for _ in range(depth):
        schema = {"items": schema}
    assert mistakes(schema)
    inner: dict = {}
    for _ in range(DEEPEST_SCHEMA - 1):
        inner = {"items": inner}
    assert mistakes(inner) == []


def test_a_schema_may_have_only_so_many_characters():
    (said,) = mistakes({"description": "x" * LONGEST})
    assert "characters" in said
    assert mistakes({"description": "x" * (LONGEST - 20)}) == []


# references that need themselves


@pytest.mark.parametrize(
    "definition",
    [
        {"$ref": "#/$defs/t"},
        {"$ref": "#/$defs/u"},
        {"type": "object", "properties": {"n": {"$ref": "#/$defs/t"}}, "required": ["n"]},
        {"type": "array", "items": {"$ref": "#/$defs/t"}, "minItems": 1},
        {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "array", "items": {"$ref": "#/$defs/u"}, "minItems": 2}]},
        {"oneOf": [{"$ref": "#/$defs/u"}]},
    ],
)
def test_a_type_that_needs_itself_is_refused(definition):
    schema = {"$ref": "#/$defs/t", "$defs": {"t": definition, "u": {"$ref": "#/$defs/t"}}}
    assert any("needs itself" in line for line in mistakes(schema))


@pytest.mark.parametrize(
    ("definition", "value"),
    [
        ({"type": "object", "properties": {"n": {"$ref": "#/$defs/t"}}}, {"n": {"n": {}}}),
        ({"type": ["object", "null"], "properties": {"n": {"$ref": "#/$defs/t"}}, "required": ["n"]}, {"n": {"n": None}}),
        ({"type": "object", "nullable": True, "properties": {"n": {"$ref": "#/$defs/t"}}, "required": ["n"]}, {"n": None}),
        ({"type": "array", "items": {"$ref": "#/$defs/t"}}, [[], [[]]]),
        ({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/t"}, "minItems": 1}]}, [[5], 6]),
    ],
)
def test_a_recursive_type_that_can_end_is_enforced_at_every_level(definition, value):
    schema = {"$ref": "#/$defs/t", "$defs": {"t": definition}}
    assert mistakes(schema) == []
    assert violations(value, schema) == []
    assert violations("text", schema)


def test_a_violation_in_a_recursive_type_is_told_with_its_whole_path():
    tree = {"type": "object", "properties": {"name": {"type": "string"}, "below": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
    schema = {"$ref": "#/$defs/tree", "$defs": {"tree": tree}}
    value = {"below": [{"name": "a"}, {"below": [{"name": 5}, 7]}]}
    assert violations(value, schema) == [
        "$.below[1].below[0].name: expected string, got integer",
        "$.below[1].below[1]: expected object, got integer",
    ]


def test_a_long_chain_of_references_is_judged_and_not_a_crash():
    count = 1500
    chain = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(count)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**chain, f"a{count}": {"type": "string"}}}
    assert len(json.dumps(schema)) < LONGEST
    mistakes(schema)


@pytest.mark.parametrize(
    "twice",
    [
        lambda name: {"anyOf": [name, name, {"type": "null"}]},
        lambda name: {"type": "object", "properties": {"l": name, "r": name}, "required": ["l", "r"]},
    ],
)
def test_types_that_are_used_twice_each_do_not_make_judging_a_schema_endless(twice):
    count = 40
    chain = {f"a{n}": twice({"$ref": f"#/$defs/a{n + 1}"}) for n in range(count)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**chain, f"a{count}": {"type": "string"}}}
    with at_most(1.5):
        mistakes(schema)


def test_alternatives_within_alternatives_do_not_make_judging_a_value_endless():
    """A tree of expressions, as a compiler would describe it: a few kinds of nodes that hold further nodes."""
    node = {"$ref": "#/$defs/node"}
    kinds = [
        {"type": "object", "properties": {"kind": {"const": kind}, "left": node, "right": node}, "required": ["kind"]}
        for kind in ("add", "sub", "mul", "div", "mod")
    ]
    schema = {**node, "$defs": {"node": {"oneOf": [{"type": "integer"}, *kinds]}}}
    value: object = 1
    for _ in range(12):
        value = {"kind": "mul", "left": value, "right": 1}
    with at_most(1.5):
        assert violations(value, schema) == []


# what a value may not be


@pytest.mark.parametrize(
    ("value", "schema", "said"),
    [
        # True is not 1, and 1.0 is an integer
        (True, {"type": "number"}, ["$: expected number, got boolean"]),
        (1, {"type": "boolean"}, ["$: expected boolean, got integer"]),
        (1.0, {"type": "integer"}, []),
        (-0.0, {"type": "integer"}, []),
        (1.5, {"type": "integer"}, ["$: expected integer, got number"]),
        (1e300, {"type": "integer"}, []),
        (10**400, {"type": "integer", "minimum": 0.5}, []),
        (10**400, {"maximum": 1e308}, ["$: must be at most 1e+308"]),
        pytest.param(10**5000, {"type": "string"}, ["$: expected string, got integer"], id="huge text"),
        pytest.param(10**5000, {"maximum": 5}, ["$: must be at most 5"], id="huge number"),
        (True, {"enum": [1, 1.0]}, ["$: must be one of [1, 1.0]"]),
        (1, {"enum": [1.0]}, []),
        ([True], {"const": [1]}, ["$: must be [1]"]),
        ({"a": {"b": 0}}, {"const": {"a": {"b": False}}}, ["$: must be {'a': {'b': False}}"]),
        ([1, 2], {"const": [1]}, ["$: must be [1]"]),
        # what is no number of JSON
        (nan, {"type": "number"}, ["$: nan is no number of JSON"]),
        (inf, {}, ["$: inf is no number of JSON"]),
        (-inf, {"minimum": 0}, ["$: -inf is no number of JSON"]),
        (nan, {"type": "integer"}, ["$: expected integer, got number"]),
        ([1, nan], {"items": {}}, ["$[1]: nan is no number of JSON"]),
        # bounds
        (2, {"minimum": 2, "maximum": 2}, []),
        (2, {"exclusiveMinimum": 2}, ["$: must be more than 2"]),
        (2, {"exclusiveMaximum": 2}, ["$: must be less than 2"]),
        (5, {"minimum": 6, "maximum": 4}, ["$: must be at least 6", "$: must be at most 4"]),
        ("", {"minLength": 1}, ["$: has 0 characters, needs at least 1"]),
        ("😀", {"maxLength": 1, "minLength": 1}, []),
        ("\ud800", {"maxLength": 0}, ["$: has 1 characters, may have at most 0"]),
        ([], {"minItems": 1}, ["$: has 0 items, needs at least 1"]),
        # rules of other types say nothing
        ("x", {"minimum": 5, "minItems": 5, "required": ["a"]}, []),
        (5, {"pattern": "x", "minLength": 9, "items": False}, []),
        # patterns are searched for
        ("xax", {"pattern": "a"}, []),
        ("xax", {"pattern": "^a"}, ["$: does not match '^a'"]),
        # null
        (None, {"type": "string", "nullable": True, "enum": ["a"]}, []),
        (None, {"type": "string", "nullable": False}, ["$: expected string, got null"]),
        (None, {"type": "string"}, ["$: expected string, got null"]),
        (5, {"type": "string", "nullable": True}, ["$: expected string or null, got integer"]),
        # names
        ({"a": 1}, {"additionalProperties": False}, ["$: 'a' is not allowed"]),
        ({"a": 1, "b": 2}, {"properties": {"a": {}, "b": False}}, ["$.b: nothing is allowed here"]),
        ({"a": 1, "b": 2}, {"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "null"}}, None),
        # alternatives
        (5, {"oneOf": [{"type": "integer"}, {"minimum": 1}]}, ["$: fits 2 of 2 alternatives, and may fit only one"]),
        (5, {"anyOf": [{"type": "integer"}, {"minimum": 1}]}, []),
        (5, {"anyOf": [{"minimum": 9}], "oneOf": [{"maximum": 1}]}, None),
        # what is no value of JSON
        ((1,), {"type": "array"}, ["$: expected array, got tuple"]),
        (b"x", {"type": "string"}, ["$: expected string, got bytes"]),
        ({1}, {"type": ["array", "object"]}, ["$: expected array or object, got set"]),
        # schemas that are true or false
        (5, True, []),
        (5, False, ["$: nothing is allowed here"]),
    ],
)
def test_what_a_value_violates(value, schema, said):
    found = violations(value, schema)
    if said is None:
        assert len(found) == 2
    else:
        assert found == said


def test_all_violations_are_told_up_to_a_number_and_the_rest_is_counted():
    assert len(violations([0] * MOST, {"items": {"type": "string"}})) == MOST
    found = violations([0] * (MOST + 7), {"items": {"type": "string"}})
    assert (len(found), found[-1]) == (MOST + 1, "and 7 more")


LIST = {"$ref": "#/$defs/t", "$defs": {"t": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/t"}}]}}}


@pytest.mark.parametrize("depth", [DEEPEST, 1_000, 100_000])
def test_a_value_of_too_many_levels_is_told_and_not_a_crash(depth):
    value = nested(depth)
    assert violations(value, LIST)
    assert violations(value, {"type": "array", "items": {}}) == []
    assert violations(nested(10), LIST) == []


def test_a_value_that_holds_itself_is_told_and_not_a_crash():
    around: list = []
    around.append(around)
    named: dict = {}
    named["n"] = named
    assert violations(around, LIST)
    arrays = {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}
    assert any("nested deeper" in line for line in violations(around, arrays))
    tree = {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "additionalProperties": {"$ref": "#/$defs/t"}}}}
    assert any("nested deeper" in line for line in violations(named, tree))
    assert violations(around, {"const": [[[1]]]}) == ["$: must be [[[1]]]"]


@pytest.mark.parametrize("made", [lambda inner: [inner], lambda inner: {"a": inner}])
@pytest.mark.parametrize("keyword", ["const", "enum"])
def test_a_deep_value_is_compared_with_a_deep_one(made, keyword):
    """A schema that is taken raises for no value."""
    deep, other = 0, 1
    for _ in range(700):
        deep, other = made(deep), made(other)
    schema = {keyword: [deep] if keyword == "enum" else deep}
    if mistakes(schema):
        return  # it is refused: nothing is to be compared then
    assert violations(deep, schema) == []
    assert len(violations(other, schema)) == 1


# what holds for all values and all schemas of the subset

SCALARS = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.0, 1.0, 1.5, -2.5, 2.0]) | st.sampled_from(["", "a", "ab", "😀"])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3), max_leaves=8
)
ODD = st.recursive(
    SCALARS
    | st.sampled_from([nan, inf, -inf, 10**400, -(10**400), "\ud800", "x" * 1000, b"x", 1j, (1, 2), frozenset(), object(), int, Ellipsis])
    | st.text(st.characters(), max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from(["a", "b", "", "\udfff", 1, None, (1,)]), inner, max_size=3)
    ),
    max_leaves=8,
)


def limits(low: str, high: str, numbers: st.SearchStrategy) -> st.SearchStrategy[dict]:
    return st.lists(numbers, min_size=2, max_size=2).map(sorted).map(lambda pair: {low: pair[0], high: pair[1]}) | st.just({})


def schemas(*, nullable: bool) -> st.SearchStrategy[dict]:
    """Schemas without mistakes, and some with: those are left out by whoever uses them."""
    sizes, numbers = st.integers(0, 3), st.integers(-3, 3) | st.sampled_from([0.5, -1.5])
    leaves = st.one_of(
        st.just({}),
        st.sampled_from([{"type": name} for name in ("null", "boolean", "integer", "number", "string", "array", "object")]),
        st.just({"type": ["string", "integer"]}),
        st.lists(VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
        VALUES.map(lambda value: {"const": value}),
        limits("minLength", "maxLength", sizes).map(lambda rules: {"type": "string", **rules}),
        st.sampled_from([{"type": "string", "pattern": "^a"}, {"pattern": "b$"}]),
        limits("minimum", "maximum", numbers).map(lambda rules: {"type": "number", **rules}),
        limits("exclusiveMinimum", "exclusiveMaximum", numbers).map(lambda rules: {"type": "integer", **rules}),
        st.just({"$ref": "#/$defs/d"}),
    )

    def grown(inner: st.SearchStrategy) -> st.SearchStrategy[dict]:
        part = inner | st.booleans()
        names = st.sampled_from(["a", "b", "c"])
        objects = st.builds(
            lambda properties, required, more: {
                "type": "object",
                "properties": properties,
                "required": sorted(set(required) & set(properties)),
                **more,
            },
            st.dictionaries(names, part, max_size=3),
            st.lists(names, max_size=2),
            st.just({}) | part.map(lambda rest: {"additionalProperties": rest}),
        )
        arrays = st.builds(lambda items, rules: {"items": items, **rules}, part, limits("minItems", "maxItems", sizes))
        alternatives = st.builds(
            lambda key, parts: {key: parts}, st.sampled_from(["anyOf", "oneOf"]), st.lists(part, min_size=1, max_size=3)
        )
        return objects | arrays | alternatives

    made = st.recursive(leaves, grown, max_leaves=6)
    if nullable:
        made = st.builds(
            lambda schema, may: {**schema, **({"nullable": True} if may and "$ref" not in schema else {})}, made, st.booleans()
        )
    return st.builds(lambda root, defined: {**root, "$defs": {"d": defined}}, made, made)


@QUICK
@given(schemas(nullable=False), VALUES)
def test_a_value_violates_what_the_library_says_that_it_does(schema, value):
    if mistakes(schema):
        return
    Draft202012Validator.check_schema(schema)
    assert (violations(value, schema) == []) == Draft202012Validator(schema).is_valid(value)


@QUICK
@given(schemas(nullable=True), ODD)
def test_no_value_makes_a_sound_schema_raise(schema, value):
    if not mistakes(schema):
        found = violations(value, schema)
        assert all(line.startswith(("$", "and ")) for line in found)


@QUICK
@given(schemas(nullable=True), VALUES)
def test_a_schema_that_may_be_null_takes_null_and_else_what_it_took_before(schema, value):
    if "$ref" in schema or "type" not in schema or mistakes(schema) or mistakes(may := {**schema, "nullable": True}):
        return
    assert violations(None, may) == []
    if value is not None:
        without = {**schema, "nullable": False}
        assert bool(violations(value, may)) == bool(violations(value, without))


@QUICK
@given(
    st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(sorted(KEYWORDS)), inner, max_size=5))
)
def test_no_json_makes_the_check_of_schemas_raise(anything):
    found = mistakes(anything)
    assert all(line.startswith("$") for line in found)


@QUICK
@given(schemas(nullable=True))
def test_a_sample_follows_its_schema_or_none_is_given(schema):
    if mistakes(schema):
        return
    try:
        value = sample(schema)
    except ValueError:
        return
    assert violations(value, schema) == []


SIMPLE = st.recursive(
    st.one_of(
        st.sampled_from([{"type": name} for name in ("null", "boolean", "integer", "number", "string")]),
        limits("minLength", "maxLength", st.integers(0, 9)).map(lambda rules: {"type": "string", **rules}),
        limits("minimum", "maximum", st.integers(-9, 9)).map(lambda rules: {"type": "integer", **rules}),
        limits("minimum", "maximum", st.floats(-9, 9)).map(lambda rules: {"type": "number", **rules}),
        st.integers(-9, 9).map(lambda low: {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 2}),
        st.integers(-9, 9).map(lambda low: {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": low + 1}),
        st.lists(SCALARS, min_size=1).map(lambda values: {"enum": values}),
        VALUES.map(lambda value: {"const": value}),
    ),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner).map(
            lambda parts: {"type": "object", "properties": parts, "required": sorted(parts), "additionalProperties": False}
        ),
        st.builds(
            lambda items, rules: {"type": "array", "items": items, **rules}, inner, limits("minItems", "maxItems", st.integers(0, 3))
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts}),
    ),
    max_leaves=6,
)


@QUICK
@given(SIMPLE)
def test_of_a_schema_of_simple_parts_there_is_a_sample(schema):
    assert mistakes(schema) == []
    assert violations(sample(schema), schema) == []
    assert Draft202012Validator(schema).is_valid(sample(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "maximum": -4.5},
        {"type": "integer", "minimum": 4.5},
        {"type": "integer", "exclusiveMaximum": -3},
        {"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 1},
        {"type": "string", "minLength": 3, "maxLength": 3},
        {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        {"type": ["null", "string"]},
    ],
)
def test_of_a_schema_of_one_rule_there_is_a_sample(schema):
    assert mistakes(schema) == []
    assert violations(sample(schema), schema) == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 10**30},
        {"type": "number", "exclusiveMinimum": 10**400},
        {"type": "integer", "minimum": 1e308, "exclusiveMaximum": 1.5e308},
        {"type": "string", "pattern": "^never$"},
    ],
)
def test_where_no_sample_is_found_that_is_said_and_nothing_else_is_raised(schema):
    assert mistakes(schema) == []
    try:
        value = sample(schema)
    except ValueError:
        return
    assert violations(value, schema) == []
