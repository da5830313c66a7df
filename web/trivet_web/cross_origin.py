"""Pages of the origins that a site lists may use `/v1`, with a key in their requests and never with a cookie.

CORS (https://fetch.spec.whatwg.org/#http-cors-protocol), as far as an API without cookies needs it.
"""

from __future__ import annotations

from flask import Response, request

PATHS = "/v1/"
_METHODS = "GET, POST, DELETE"
_EXPOSED = "Retry-After, X-Request-Id, X-Trivet-Fallback"
_REMEMBERED_S = 600


class CrossOrigin:
    """Args: origins: with commas, as `https://app.example.com`."""

    def __init__(self, origins: str) -> None:
        self._origins = frozenset(filter(None, (each.strip() for each in origins.split(","))))

    def is_listed(self) -> bool:
        """Whether a page that may do so sends this request."""
        return request.path.startswith(PATHS) and request.headers.get("Origin") in self._origins

    def preflight(self) -> Response | None:
        """The answer to a browser that asks what such a page may send; it sends no key yet."""
        if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
            return None
        response = Response(status=204)
        response.headers["Access-Control-Allow-Methods"] = _METHODS
        # Whatever it is: no header is let in that a client without a browser could not send.
        response.headers["Access-Control-Allow-Headers"] = request.headers.get(
            "Access-Control-Request-Headers", ""
        )
        response.headers["Access-Control-Max-Age"] = str(_REMEMBERED_S)
        return response

    def add_headers(self, response: Response) -> Response:
        """Without `Allow-Credentials`: a browser leaves cookies out."""
        if self._origins and request.path.startswith(PATHS):
            response.vary.add("Origin")
        if self.is_listed():
            response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
            response.headers["Access-Control-Expose-Headers"] = _EXPOSED
        return response
