"""What goes over the wire, as values: ids, topics, errors, frames, batches, control messages."""
