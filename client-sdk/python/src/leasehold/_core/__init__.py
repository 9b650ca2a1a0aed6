"""What keeps leases alive: one thread, its streams, and the rules; used by both interfaces."""
