"""The answer to one request: its sequences at the engines, and the events in which a client gets it."""
