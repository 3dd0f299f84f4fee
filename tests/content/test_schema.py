"""The subset of JSON Schema."""

from __future__ import annotations

import pytest

from hames.content.schema import violations
from hames.content.schema_check import mistakes

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^[a-z]*$"},
        "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "next": {"anyOf": [{"$ref": "#/$defs/person"}, {"type": "null"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"person": {"type": "object", "required": ["name"]}},
}


def test_a_sound_value_has_no_violations():
    assert violations({"name": "ada", "age": 36, "tags": ["a"], "next": {"name": "bob"}}, PERSON) == []
    assert violations({"name": "ada", "age": 36.0, "next": None}, PERSON) == []


def test_every_violation_is_reported_with_its_path():
    value = {"name": "TOO LONG", "age": 150, "tags": ["a", "c", "b"], "next": {}, "extra": 1}
    assert violations(value, PERSON) == [
        "$.name: has 8 characters, may have at most 5",
        "$.name: does not match '^[a-z]*$'",
        "$.age: must be less than 150",
        "$.tags: has 3 items, may have at most 2",
        "$.tags[1]: must be one of ['a', 'b']",
        "$.next: fits none of 2 alternatives; nearest: $.next: 'name' is missing",
        "$: 'extra' is not allowed",
    ]


@pytest.mark.parametrize(
    ("value", "schema", "said"),
    [
        (True, {"type": "integer"}, "$: expected integer, got boolean"),
        (1, {"const": True}, "$: must be True"),
        ("x", {"type": ["number", "null"]}, "$: expected number or null, got string"),
        ({}, {"required": ["a", "b"]}, "$: 'a' is missing|$: 'b' is missing"),
        (1, {"$ref": "#/$defs/gone"}, "$: #/$defs/gone points nowhere"),
        ({"a": 1}, {"additionalProperties": {"type": "string"}}, "$.a: expected string, got integer"),
        (1, False, "$: nothing is allowed here"),
    ],
)
def test_single_violations(value, schema, said):
    assert "|".join(violations(value, schema)) == said


def test_what_is_not_enforced_is_named():
    schema = {"type": "object", "properties": {"a": {"oneOf": []}, "b": {"type": "date"}}, "title": "fine", "if": {}}
    assert mistakes(schema) == [
        "$: keyword 'if' is not supported",
        "$.a: oneOf has no alternative",
        "$.b: there is no type 'date'",
    ]
