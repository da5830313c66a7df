"""Engines on other hosts: an agent there, and a launcher here that speaks with one agent a host.

`host_agent` runs on the other host and starts engines there as the local launcher does here; what it has to
remember lies in files beside their orders, so it may die and come anew at any time. `remote_launcher` is a
`launching.Launcher` over them; how a message gets to one (`agent_calls.Hosts`) is not its business.
"""
