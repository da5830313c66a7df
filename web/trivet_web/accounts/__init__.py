"""Who may do what: rights of routes, whoever asks, keys with limits, logins, the audit log, usage.

Design, in the order in which a request meets it:

1. Each view declares the one `Right` that it needs (`@requires`); a route without one stops the start, and
   a test walks every route with every role. Roles of users and scopes of keys are two tables of rights
   (rights.py); a key has the rights that both its scopes and its owner's role have.
2. `guard.py` finds the `Principal` behind a request: the token of the run directory, an API key or a session
   as bearer or x-api-key, or a session's cookie. A cookie alone never changes anything and never reaches
   inference: those take the session's CSRF token in a header (or form field) as well; Origin is checked.
3. `Credentials` remembers principals by the hash of their secret, in each web process. Whatever changes who
   may do what is an act, so the newest id of the audit log is the version of that memory: one small query
   each half second, and a revoked key or session is refused everywhere after that.
4. While a site is bound to loopback, `auth` is auto and no user exists, inference is open to anyone and
   management needs the token. The first user ends that. `serve` refuses an address beyond loopback without
   users or without TLS, unless told --insecure; then everything needs a secret.
5. The first admin comes in by the setup link, whose code is derived from the token and of no use afterwards.
   Passwords are argon2id, two at a time; attempts are counted in the database before a password is looked at.
6. Limits of a key (requests a minute, requests at once) hold over all web processes: they are counted in a
   small SQLite file of the run directory that waits for no disk. Not in the registry, which syncs each
   commit; not a share for each process, because a client's connections stay in one.
7. Usage is added up in memory when a request ends and written every two seconds and at the end: so much a
   crash may lose.
8. Each act is recorded by `record` in the transaction of the act itself.
"""
