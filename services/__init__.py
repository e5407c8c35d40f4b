"""A real Apache Kafka and a real Apache Cassandra on this machine, from Maven artifacts: for tests and benchmarks.

Neither a container nor root is needed, but Java 17, Maven and Linux. The jars are fetched once, to
``~/.cache/weir-services`` (``WEIR_SERVICES_HOME`` moves them); everything of a running service lies in its directory.
All of it listens on 127.0.0.1 only. ``SERVICES_JVM`` has more options for each Java machine.
"""
