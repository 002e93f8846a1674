"""Write to Delta tables: ``delta_audit`` keeps every change, ``delta_replica`` the rows, ``delta_features`` aggregates.

``table`` reads and changes the Delta table at a path. ``sink`` is the base class of the three sinks.
"""
