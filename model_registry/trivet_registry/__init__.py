"""What a site knows, in SQL: models and versions, deployments (desired), instances (observed), events."""
