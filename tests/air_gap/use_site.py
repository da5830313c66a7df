"""What a person and a program do on a site: `python use_site.py DEPLOYMENT`, with TRIVET_HOME set."""

from __future__ import annotations

import http.cookiejar
import re
import sys
import urllib.parse
import urllib.request

from trivet import Client
from trivet_web.console.navigation import PAGES

PASSWORD = "a long password of words"
QUESTION = [{"role": "user", "content": "Which metal is heaviest?"}]
MAX_TOKENS = 16
ACCEPT = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
NAMED = {  # by the kind of content: what is loaded because it is named
    "text/html": re.compile(r'(?:src|href)="([^"#]+)"'),
    "text/css": re.compile(r'(?:url\(|@import\s+)["\']?([^"\')\s]+)'),
    "text/javascript": re.compile(r'\b(?:from|import)\s+"([^"\n]+)"'),
}


def main(deployment: str) -> None:
    with Client() as client:
        client.users.create("admin", PASSWORD, role="admin")
        key = client.keys.create("program", models=[deployment]).key
        url = str(client.base_url)
    with Client(url, key) as client:
        parts = client.chat.stream(deployment, QUESTION, max_tokens=MAX_TOKENS, temperature=0)
        print("chat:", "".join(part.text for part in parts).strip())
    visit_console(url)


def visit_console(url: str) -> None:
    """Raises: HTTPError for what is not there; SystemExit for a name of another host."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    form = urllib.parse.urlencode({"name": "admin", "password": PASSWORD}).encode()
    opener.open(urllib.request.Request(f"{url}/login", form, {"Origin": url, **ACCEPT})).close()
    to_load = {page.path for page in PAGES if not page.parent}
    loaded: set[str] = set()
    while to_load:
        path = to_load.pop()
        loaded.add(path)
        with opener.open(urllib.request.Request(url + path, headers=ACCEPT)) as answer:
            text, kind = answer.read().decode(errors="replace"), answer.headers.get_content_type()
        if "/login" in answer.url:
            sys.exit(f"{path} leads to the login")
        for name in NAMED[kind].findall(text) if kind in NAMED else ():
            place = urllib.parse.urljoin(url + path, name)
            if name.startswith("data:"):
                continue
            if not place.startswith(url):
                sys.exit(f"{path} names {place}, which is elsewhere")
            rest = place.removeprefix(url).partition("#")[0]
            if rest.startswith("/console/files/") and rest not in loaded:
                to_load.add(rest)
    print(f"console: {len(loaded)} pages and files")


if __name__ == "__main__":
    main(sys.argv[1])
