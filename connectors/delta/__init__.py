"""Sinks that are Delta tables: ``delta_audit`` keeps every change, ``delta_replica`` the rows, ``delta_features`` a query's answer.

``table`` holds what a Delta table at a path can be asked and told, ``sink`` what the three have in common.
"""
