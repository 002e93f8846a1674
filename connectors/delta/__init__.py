"""Write to Delta tables: ``delta_audit`` keeps every change, ``delta_replica`` the rows, ``delta_features`` aggregates.

``sink`` is the base class of the three sinks. ``table`` and ``snapshot`` read a Delta table, ``schema`` creates and changes
it, ``transactions`` and ``commits`` identify its writes.
"""
