"""Names of Redis keys: two rows never share a key, two routes never share a prefix, a guard is found from its value."""

from __future__ import annotations

import fnmatch

import pytest

from connectors import PermanentError, RouteSpec
from connectors.redis import RedisOptions
from connectors.redis.keys import KeyNames, guard_of_value, is_internal, key_names, parse_template
from connectors.redis.script import is_guard


def route(*keys):
    return RouteSpec("orders_cache", "orders", keys, RedisOptions(), owner="us", epoch=1)


def test_default_redis_key_is_the_table_and_the_key_text():
    assert key_names(route("region", "id"), None) == KeyNames((("orders:", 0),), whole=True)


def test_key_template_takes_key_columns_by_position():
    names = key_names(route("region", "id"), "o:{id}:{region}/x")
    assert names == KeyNames((("o:", 1), (":", 0), ("/x", None)), whole=False)


@pytest.mark.parametrize("template", ["o:{id}", "o:{id}:{name}", "o:{id}:{region}:{id}", "o:"])
def test_key_template_must_name_each_key_column_once(template):
    with pytest.raises(
        PermanentError, match="of route orders_cache does not name exactly the key columns region, id"
    ) as caught:
        key_names(route("region", "id"), template)
    assert "share a Redis key" in caught.value.hint


def test_key_template_is_split_into_texts_and_columns():
    assert parse_template("o:{a}:{b}") == [("o:", "a"), (":", "b")]
    assert parse_template("o:{a}/x") == [("o:", "a"), ("/x", None)]
    assert parse_template("o") == [("o", None)]


@pytest.mark.parametrize(
    "template", ["o:{a}}", "o:{a}:{", "o:}{a}", "{a}", "", "o:{}", "o:{a}{b}", "o:{a}-{b}", "o:{a}:{b}-{c}"]
)
def test_ambiguous_key_template_is_refused(template):
    with pytest.raises(ValueError, match=r"^expected .*(orders:\{id\}|could share a key)"):
        parse_template(template)


def test_guards_and_claim_of_a_route_begin_with_its_prefix():
    names = key_names(route("id"), "o:{id}:x")
    assert names.prefix == "o:"
    assert names.claim == "cdf:claim:{o:}"
    assert names.guard_pattern == "cdf:guard:{o:*"
    assert names.value_pattern == "o:*:x"
    assert guard_of_value(b"o:1:x") == b"cdf:guard:{o:1:x}"


def test_values_of_a_former_template_are_found_by_their_guards():
    guards = [*map(guard_of_value, (b"o:1:x", b"o:1", b"o:1\n:x", b"o:1:y")), b"cdf:guard:{o:2"]
    assert key_names(route("id"), "o:{id}:x").former_values(guards) == [b"o:1", b"o:1:y"]
    assert key_names(route("id"), "o:{id}").former_values(guards) == []
    assert key_names(route("region", "id"), "o:{region}:{id}").former_values(guards) == [b"o:1"]


def test_longer_prefixes_are_found_in_claims_of_a_server_and_a_cluster():
    names = key_names(route("id"), "o:{id}:x")
    assert names.claim_pattern == "cdf:claim:{*o:*"
    claims = ["{o:}", "{o:eu:}", "{po:}", "{12}o:", "{12}o:us:", "{13}o:us:", "{14}po:"]
    assert names.longer_prefixes([b"cdf:claim:" + claim.encode() for claim in claims]) == {b"o:eu:", b"o:us:"}


@pytest.mark.parametrize("character", list("*?[]^\\"))
def test_patterns_of_a_route_escape_glob_characters_of_its_prefix(character):
    names = key_names(route("id"), f"o{character}:{{id}}")
    assert names.value_pattern == f"o\\{character}:*"
    assert names.guard_pattern == f"cdf:guard:{{o\\{character}:*"


def test_value_pattern_of_a_route_matches_only_its_prefix():
    pattern = key_names(route("region", "id"), "o:{region}:{id}").value_pattern
    assert fnmatch.fnmatchcase("o:eu:7", pattern)
    assert not fnmatch.fnmatchcase("p:eu:7", pattern)


@pytest.mark.parametrize(
    ("key", "own"),
    [
        (b"cdf:guard:{o:1}", True),
        (b"cdf:claim:{o:}", True),
        (b"o:1", False),
        (b"cdf:guard:o", False),
        (b"o:cdf:guard:{1}", False),
    ],
)
def test_a_guard_and_a_claim_are_no_values_of_a_route(key, own):
    assert is_internal(key) is own


@pytest.mark.parametrize(
    ("text", "guard"),
    [
        (b"0000017592186044430", True),
        (b"0000017592186044430d", False),  # a tombstone
        (b"000017592186044430", False),
        (b"00000017592186044430", False),
        (b"000001759218604443d", False),
        (b"", False),
    ],
)
def test_a_guard_in_redis_is_19_digits(text, guard):
    assert is_guard(text) is guard
