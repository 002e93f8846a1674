"""Compare the entries of a target with the rows of its source table while changes keep flowing."""

__all__ = ["BackgroundVerifier", "Comparison", "ComparisonRequests", "VerifierThread", "verify"]

from cdf_replicator.verification.background import BackgroundVerifier
from cdf_replicator.verification.requests import ComparisonRequests
from cdf_replicator.verification.result import Comparison
from cdf_replicator.verification.verifier_thread import VerifierThread
from cdf_replicator.verification.verify import verify
