"""Start the JVM and reach what PySpark has no API for: Hadoop's file systems and callbacks."""
