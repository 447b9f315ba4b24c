"""One store behind the service: every mutation of every client applied exactly once."""
