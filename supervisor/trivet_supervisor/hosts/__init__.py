"""Engines on other hosts: an agent there, and a launcher here that speaks with one agent a host.

`host_agent` runs on the other host and starts engines there as the local launcher does here; it remembers
nothing that an engine's lease does not tell, so it may die and come anew at any time. `remote_launcher` is a
`launching.Launcher` over them; how a message gets to one (`agent_calls.Hosts`) is not its business.

No launcher that is installed with Trivet uses it yet: the way to agents is a test's. Before one does, these
are to be done. The supervisor's loop waits for a start on a host that is slow (up to 15 s). What was given
up is remembered by the supervisor that did it; a later one finds it among the orders of its host, within half
a minute of its return, and ends it, though nothing may have taken its place. Load, temperature and users of
devices are not asked for, so `stopped` does not mean there that the memory is back. A model file is taken to
be the same on every host. Whoever reaches an agent can start processes there.
"""
