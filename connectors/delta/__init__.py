"""Write to Delta tables: ``delta_audit`` keeps every change, ``delta_replica`` the rows, ``delta_features`` aggregates.

``sink`` is the base class of the three sinks. The package ``tables`` reads and changes Delta tables, for any sink.
"""
