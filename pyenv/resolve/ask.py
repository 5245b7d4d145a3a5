"""Asks the indexes which files they have of some projects, by pip's own session, so
that its proxies, certificates and credentials hold. What an index answers is only
passed on: the judgement is in Go."""
import hashlib
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from urllib.parse import quote, unquote, urljoin, urlsplit

if sys.argv[1]:
    sys.path.insert(0, sys.argv[1])

from pip._internal.commands import create_command  # noqa: E402

MOST_BYTES = 64 << 20  # of one page
MOST_FILES = 50_000  # of one project
JSON = "application/vnd.pypi.simple.v1+json"
ACCEPT = JSON + ", application/vnd.pypi.simple.v1+html; q=0.1, text/html; q=0.01"

DISTRIBUTIONS = (".whl", ".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz", ".egg", ".exe")


class NoIndex(Exception):
    """The answer is a page of something else."""


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.files = []
        self.declared = False  # it says of itself that it is a page of an index

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if tag == "meta" and a.get("name") == "pypi:repository-version":
            self.declared = True
        if tag == "a" and a.get("href") and len(self.files) < MOST_FILES:
            name = unquote(urlsplit(a["href"]).path.rsplit("/", 1)[-1])
            yanked = a["data-yanked"] or "yanked" if "data-yanked" in a else ""
            self.files.append([name, 0, "", yanked, a.get("data-requires-python") or ""])


def text(value):
    return value if isinstance(value, str) else ""


def of_json(body):
    files = []
    for f in json.loads(body)["files"][:MOST_FILES]:
        yanked = f.get("yanked") or ""
        size = f.get("size")
        files.append([text(f["filename"]), size if type(size) is int else 0, text(f.get("upload-time")),
                      yanked if isinstance(yanked, str) else "yanked", text(f.get("requires-python"))])
    return files


def of_html(body, charset):
    page = Page()
    page.feed(body.decode(charset or "utf-8", "replace"))
    page.close()
    # The page of a network that wants a login is HTML with links, too.
    if not page.declared and not any(name.lower().endswith(DISTRIBUTIONS) for name, *_ in page.files):
        raise NoIndex()
    return page.files


def why(error):
    """The names of the exceptions that led here, for the Go side to tell them apart."""
    names, todo = [], [error]
    while todo and len(names) < 20:
        e = todo.pop()
        if isinstance(e, BaseException) and type(e).__name__ not in names:
            names.append(type(e).__name__)
            if "SOCKS" in str(e):  # told by a ValueError
                names.append("Socks")
            todo += [e.__cause__, e.__context__, getattr(e, "reason", None)] + list(getattr(e, "args", ()))
    return " ".join(names)


def fetch(session, url):
    answer = {"host": urlsplit(url).hostname or "", "status": 0, "error": "", "files": []}
    try:
        with session.get(url, headers={"Accept": ACCEPT, "Cache-Control": "max-age=0"}, stream=True) as r:
            answer["status"] = r.status_code
            if r.status_code != 200:
                return answer
            body = bytearray()
            for piece in r.iter_content(1 << 16):
                body += piece
                if len(body) > MOST_BYTES:
                    answer["error"] = "TooLarge"
                    return answer
            kind = r.headers.get("Content-Type", "").lower()
            if kind.startswith(JSON):
                answer["files"] = of_json(bytes(body))
            elif kind.startswith(("text/html", "application/vnd.pypi.simple.v1+html")):
                answer["files"] = of_html(bytes(body), r.encoding)
            else:
                answer["error"] = "NoIndex"
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        answer["error"] = "Garbage " + why(e)
    except Exception as e:
        answer["error"] = why(e)
        tried = re.search(r"too many ([45]\d\d) error responses", str(e))
        if tried:  # what is worth a retry is told like this after the last one
            answer["status"], answer["error"] = int(tried.group(1)), ""
    return answer


def of_directory(link):
    answer = {"host": "", "status": 200, "error": "", "files": []}
    try:
        answer["files"] = [[f, os.stat(os.path.join(link, f)).st_size, "", "", ""] for f in sorted(os.listdir(link))[:MOST_FILES]]
    except OSError as e:
        answer["error"] = "Directory " + why(e)
    return answer


def ask(session, options, name):
    urls = []
    if not options.no_index:
        urls = [u.rstrip("/") + "/" + quote(name) + "/" for u in [options.index_url] + options.extra_index_urls]
    answers = [fetch(session, u) for u in urls]
    for link in options.find_links:
        if os.path.isdir(link):
            answers.append(of_directory(link))
        else:
            answers.append(fetch(session, urljoin(link, "")))
    return answers


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for piece in iter(lambda: f.read(1 << 20), b""):
            h.update(piece)
    return h.hexdigest()


def main():
    with open("/run/vdisk/ask.json") as f:
        wanted = json.load(f)
    command = create_command("download", isolated=True)
    options, _ = command.parse_args(sys.argv[2:])
    with command.main_context():
        session = command._build_session(options)
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda name: ask(session, options, name), wanted["names"]))
    with open("/out/answers.json", "w") as f:
        json.dump({"projects": dict(zip(wanted["names"], answers)), "hashes": {p: sha256(p) for p in wanted["files"]}}, f)


main()
