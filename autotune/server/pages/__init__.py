"""The pages: what a browser gets. The service makes the HTML; htmx fetches parts of it anew.

    plan_form, plan_page     a job is asked for; its plan, live, then whole
    run_form, run_page       the same of runs, and their queue
    history, compare         all there was

What happens in a work is folded into a state (`plan_progress`, `run_progress`), which a template
shows; a page that is loaded again shows the same, and `follow` sends what changes.
"""
