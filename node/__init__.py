"""The process: listeners, sessions, router, request/reply, flow control, config and commands."""
