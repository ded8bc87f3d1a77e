"""The append-only logs on disk: record scan, index, segment, log, store, retention, recovery."""
