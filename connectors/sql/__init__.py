"""Check the SQL of a route, for the service and for sinks whose options are SQL."""
