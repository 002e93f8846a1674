"""Declare the differences between sinks that the service considers, in one value (``Sink.capabilities``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Capabilities of a sink. The defaults fit a sink that declares none.

    Args:
        rejection_codes: Every code of ``Rejected`` that the sink returns. The metric of each code starts at 0.
        preimages: Whether an append sink receives ``update_preimage`` rows regardless of INCLUDE_PREIMAGES.
        deleted_rows: Whether an upsert sink reads the row of a delete. If not, the service sends null to save the transfer.
        exact_counts: Whether an append ``FrameSink`` applies every row and returns their ``versions``, so that the service
            counts no rows.
        fencing: Whether the target refuses writes with a lower ``RouteSpec.fence`` than the last ``prepare`` recorded.
        prefix_targets: Whether a target may not be a prefix of another target either.
    """

    rejection_codes: tuple[str, ...] = ()
    preimages: bool = False
    deleted_rows: bool = True
    exact_counts: bool = False
    fencing: bool = False
    prefix_targets: bool = False
