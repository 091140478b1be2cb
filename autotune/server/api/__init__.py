"""The HTTP API, `/api/v1`. `docs/server/openapi.json` is made from here."""
