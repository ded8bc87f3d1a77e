"""Queues over the log: leases, retries, delays, dead letters. Decisions alone: no IO, no clock."""
