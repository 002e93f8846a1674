"""The identity of a server in its INFO."""

import pytest

from connectors.redis.client import Identity, identity_of

INFO = {"run_id": "a1", "master_replid": "b2", "master_repl_offset": 7}


@pytest.mark.parametrize("hidden", INFO)
def test_server_that_hides_an_id_has_an_unknown_identity(hidden):
    """Compatible servers of other makers leave fields out."""
    assert identity_of(INFO) == Identity("a1", "b2", 7)
    assert identity_of({name: value for name, value in INFO.items() if name != hidden}) is None
