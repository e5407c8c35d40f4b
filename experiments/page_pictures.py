"""Pictures of the page in five situations, of a real job in a real browser."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from experiments.browser import Browser
from experiments.page_clusters import PageCluster, await_headline

#: Width of the page in CSS pixels.
_WIDE, _NARROW = 1_200, 390
_HEIGHT = 900
#: Of the pictures; docs/page.md and the others name some of them.
CALM, BOTTLENECK, LATE, PHONE, WAITING = (
    f"page_{name}.webp" for name in ("calm", "bottleneck", "late", "phone", "waiting")
)
#: So many points a line gets before a picture is taken.
_POINTS = 20
_RESCALED = "return document.querySelector('#happened tbody')?.textContent.includes('COMPLETE')"


def take_pictures(out: Path, tell: Callable[[str], None]) -> list[Path]:
    """Run jobs and write the pictures; returns their paths. Takes about two minutes.

    Args:
        out: directory, which exists.
        tell: called with what begins.

    Raises:
        BrowserError: there is no browser, or a page did not come to what it was to show.
        ClusterError: a job did not run.
    """
    with tempfile.TemporaryDirectory(prefix="weir-pictures-") as name:
        directory = Path(name)
        with Browser(directory / "browser", width=_WIDE, height=_HEIGHT) as browser:
            browser.resize(_WIDE, _HEIGHT)
            browser.prefer("light")
            tell("a job that waits, keeps up, and has a step that becomes slow")
            _first_job(directory / "first", browser, out)
            tell("a job with a late source and bad records")
            _second_job(directory / "second", browser, out)
    return [out / name for name in (CALM, BOTTLENECK, LATE, PHONE, WAITING)]


def _first_job(directory: Path, browser: Browser, out: Path) -> None:
    with PageCluster(directory, task_managers=2) as cluster:
        cluster.start_job(events=100_000)
        cluster.wait_for(lambda status: True, "the first status")
        browser.open(cluster.page)
        await_headline(browser, "waiting")
        _picture(browser, out / WAITING, points=2)
        cluster.start_task_managers()
        await_headline(browser, "keeps up")
        cluster.http("POST", "/scale?stage=4&parallelism=3")
        browser.wait_for(_RESCALED, "the end of the rescale")
        _picture(browser, out / CALM, words="keeps up")
        cluster.slow_down(20_000)
        await_headline(browser, "key group")
        _picture(browser, out / BOTTLENECK, points=8, words="key group")
        browser.resize(_NARROW, _HEIGHT)
        browser.prefer("dark")
        _picture(browser, out / PHONE, points=2)
        browser.resize(_WIDE, _HEIGHT)
        browser.prefer("light")


def _second_job(directory: Path, browser: Browser, out: Path) -> None:
    with PageCluster(directory) as cluster:
        cluster.run_job(events=100_000, late_ms=60_000, bad=3)
        browser.open(cluster.page)
        await_headline(browser, "holds event time back")
        browser.wait_for(
            "return document.querySelectorAll('#lost tbody tr').length > 0", "rows that did not make it"
        )
        _picture(browser, out / LATE, words="holds event time back")


def _picture(browser: Browser, path: Path, points: int = _POINTS, words: str = "") -> None:
    line = "document.querySelector('.chart path')?.getAttribute('d').split('L').length ?? 0"
    wanted = browser.run(f"return {line}") + points
    browser.wait_for(f"return ({line}) >= {wanted}", f"a line of {wanted} points", 120)
    # On a busy machine the page may say something else in between.
    await_headline(browser, words)
    browser.screenshot(path)
