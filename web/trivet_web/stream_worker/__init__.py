"""gunicorn's worker of ours: connections of clients, and the pump that serves all that wait for an engine."""
