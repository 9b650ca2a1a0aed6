"""Internals of the client, used by both interfaces: its thread, its lease streams, and the validity of leases."""
