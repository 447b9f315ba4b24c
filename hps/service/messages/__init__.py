"""The bytes on the wire that client and server share: framing, tables, statuses, addresses."""
