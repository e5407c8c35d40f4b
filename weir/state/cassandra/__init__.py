"""State in Cassandra or ScyllaDB: unapplied changes in a local store, everything else in the database."""
