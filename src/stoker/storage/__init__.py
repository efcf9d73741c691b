"""Where files live: durable writes, locks and publishing on the local disk."""
