"""Which certificates of a server a route waits for."""

import pytest

from connectors import PermanentError, RetryableError
from connectors.errors import certificate_error

REFUSED = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("certificate has expired (_ssl.c:1007)", "has expired"),
        ("certificate is not yet valid (_ssl.c:1007)", "not yet valid"),
    ],
)
def test_certificate_outside_its_time_is_retried_and_named(text, said):
    error = certificate_error("Redis at a:1", REFUSED + text)
    assert isinstance(error, RetryableError)
    assert error.reason == "certificate_expired"
    assert said in error.detail


def test_certificate_of_an_unknown_authority_halts():
    error = certificate_error("Redis at a:1", REFUSED + "unable to get local issuer certificate")
    assert isinstance(error, PermanentError)
    assert certificate_error("Redis at a:1", "connection refused") is None
