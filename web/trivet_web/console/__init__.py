"""The console: pages for people. Everything they show comes from /v1, /platform/v1 and one event stream.

Folders, so that a page is found by its name:

    pages/NAME/   page.html (Jinja, fills the shell's blocks), page.js (its module), page.css where it
                  needs one, en.json and zh-CN.json (its words; keys begin with NAME)
    shell/        what is around every page: navigation, header, tokens of design, keyboard, palette
    base/         parts that pages are made of: requests, the live stream, tables, forms, dialogs, charts

navigation.py lists the pages, with the right that each needs; a page that is not there is a 404.

Own ES modules and CSS only: nothing is fetched from elsewhere, nothing has to be built, and the policy of
guard.py allows no inline script or style. Files are served under a name made of all their contents, so that
browsers keep them for good and never mix those of two releases. What the server knows goes to the modules in
one <meta> of JSON. Whatever models, logs and users write becomes text nodes, never markup.
"""

from __future__ import annotations

from trivet_web.console import event_routes, files, views

BLUEPRINTS = (views.blueprint, files.blueprint, event_routes.blueprint)
