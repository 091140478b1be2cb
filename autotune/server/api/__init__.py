"""The HTTP API, `/api/v1`. `docs/openapi.json` is made from here."""
