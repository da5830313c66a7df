"""The launcher `ray`: the hosts are the nodes of a Ray cluster.

Ray is what knows the hosts, starts an agent on each (a detached, named actor that keeps the agent's process
running) and is told which GPUs and NPUs engines hold (a placement group an engine). What is said to agents
does not go through Ray, and whether a host answers is not Ray's word: a node that was cut off for half a
minute is dead to Ray for good, while its engines serve and answer as soon as the cable is in again; and when
the cluster's head is started anew, Ray ends whatever runs in it. Agents and engines are processes of their
own, reached over tcp (`agent_way`), and where they are is remembered here. Without Ray nothing new is placed
on hosts that are not known yet, and all that runs goes on.
"""
