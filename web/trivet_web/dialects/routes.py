"""Every dialect: its routes, and how its failures look."""

from __future__ import annotations

from collections.abc import Mapping

from trivet_web.dialects.anthropic import routes as anthropic
from trivet_web.dialects.ollama.objects import error_form as ollama_form
from trivet_web.dialects.ollama.routes import BLUEPRINTS as OLLAMA
from trivet_web.dialects.tgi import routes as tgi
from trivet_web.dialects.tgi.objects import error_form as tgi_form
from trivet_web.dialects.xinference.launching import blueprint as launching
from trivet_web.dialects.xinference.login import PATH as LOGIN
from trivet_web.dialects.xinference.login import blueprint as login
from trivet_web.dialects.xinference.objects import error_form as xinference_form
from trivet_web.dialects.xinference.registration import blueprint as registration
from trivet_web.error_objects import ErrorForm

BLUEPRINTS = (
    *OLLAMA,
    anthropic.blueprint,
    tgi.blueprint,
    launching,
    registration,
    login,
)
_FORMS: Mapping[str, ErrorForm] = {  # by the start of the path; the first counts
    "/v1/messages": anthropic.error_form,
    "/api/": ollama_form,
    "/generate": tgi_form,
    "/info": tgi_form,
    "/v1/": xinference_form,
}


def error_form_of(method: str, path: str) -> ErrorForm | None:
    """None: OpenAI's."""
    if (method, path) == ("POST", "/"):
        return tgi_form
    if path == LOGIN:
        return xinference_form
    return next((form for start, form in _FORMS.items() if path.startswith(start)), None)
