"""A worker: takes works from a service, and does them by the commands of the command line.

It is a process of its own, on the machine that has the devices: a run goes on while the service is
down, and what happened meanwhile is sent when it answers again.
"""
