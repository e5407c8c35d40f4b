"""Records of Kafka in and out. The client library, confluent-kafka, is loaded only where a job uses it."""
