"""What engines say on the wire, turned into core records; and an engine that only pretends."""
