"""A pipeline's positions, transactions and checks in Kafka."""
