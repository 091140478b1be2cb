"""The pages: what a browser gets. The service makes the HTML; htmx fetches parts of it anew.

form       a model or a job is pasted, and planned or run
work       a plan or a run: a line of state with its events, then its answer or its report
works      all there was, searched
"""
