"""From a web process to its engines: which of them serves a request, the messages, waking one."""
