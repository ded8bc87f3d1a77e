"""More than one copy: mirror choice, live mirroring, catch-up, replay and repair."""
