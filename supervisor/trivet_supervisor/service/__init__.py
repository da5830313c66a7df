"""`trivet serve` as a service of systemd: its unit, and the word that it is up."""
