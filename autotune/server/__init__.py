"""The service: plans, runs and history over HTTP, for a team and its machines.

    browser, client --> app (api, pages) --> store (SQLite or PostgreSQL)
                                               ^
    worker on each machine --- leases, beats --+   starts `autotune plan` and `autotune run`

Nothing is decided here that the command line does not decide: a worker starts the very commands.
Nothing but `cli/serve.py` and `cli/worker.py` imports this room.
"""
