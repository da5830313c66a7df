"""Ways to start engine processes; others come as plugins (`trivet_launcher`)."""
