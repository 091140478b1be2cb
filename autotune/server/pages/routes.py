"""All pages, put into an app."""

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from autotune.server.pages import (
    history,
    plan_form,
    plan_page,
    run_form,
    run_page,
    runs_list,
    sign_in,
)
from autotune.server.pages.problems import show_problems
from autotune.server.pages.render import STATIC


def add_pages(app: FastAPI) -> None:
    """Let an app answer browsers. Its handlers of errors are there already."""
    for part in (plan_form, plan_page, run_form, runs_list, run_page, history, sign_in):
        app.include_router(part.router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    show_problems(app)
