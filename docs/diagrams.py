"""Draws the pictures of docs/how-it-works.md: `python docs/diagrams.py`; a test compares them.

They need no program to be read: plain SVG with text, for light and dark surroundings.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #3b3a37 }
  .title { font-weight: 600; fill: #0b0b0b }
  .soft { fill: #6b6a66; font-size: 12px }
  .box { fill: #f4f3ef; stroke: #b9b6ac }
  .store { fill: #e3ecf8; stroke: #2a78d6 }
  .run { fill: #2a78d6 } .late { fill: #c4472d } .next { fill: #2f8f5b }
  .lease { fill: #2a78d6; opacity: .25 } .lease2 { fill: #2f8f5b; opacity: .25 }
  .line { stroke: #6b6a66; stroke-width: 1.5; fill: none }
  .mark { stroke: #c4472d; stroke-width: 1.5; stroke-dasharray: 4 3 }
  .head { fill: #6b6a66 }
  .ground { fill: #fcfcfb }
  @media (prefers-color-scheme: dark) {
    text { fill: #c9c7c0 } .title { fill: #f4f3ef } .soft { fill: #a3a19a }
    .box { fill: #2a2926; stroke: #5d5b54 } .store { fill: #1d2c40 } .ground { fill: #1a1a19 }
    .line { stroke: #a3a19a } .head { fill: #a3a19a }
  }
"""

ARROW = (
    '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path class="head" d="M0 0 8 4 0 8z"/></marker></defs>'
)

#: Seconds to pixels of the timeline, and where it begins.
SCALE, LEFT = 2.0, 120


def document(width: int, height: int, label: str, parts: Iterator[str]) -> str:
    """Return an SVG document."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(label)}">\n<style>{STYLE}</style>\n{ARROW}\n'
        f'<rect class="ground" width="{width}" height="{height}" rx="8"/>\n{body}\n</svg>\n'
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Return one line of text."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, size: tuple[float, float], kind: str, *lines: str) -> str:
    """Return a box; its first line is its name."""
    width, height = size
    rect = (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'
    )
    said = [
        text(x + 12, y + 22 + 18 * number, line, "soft" if number else "title")
        for number, line in enumerate(lines)
    ]
    return "\n".join([rect, *said])


def bar(x: float, y: float, size: tuple[float, float], kind: str) -> str:
    """Return a filled rectangle."""
    width, height = size
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'


def arrow(points: str, *, both: bool = False) -> str:
    """Return a line with a head at its end."""
    start = ' marker-start="url(#a)"' if both else ""
    return f'<polyline class="line" points="{points}" marker-end="url(#a)"{start}/>'


#: Lines of the broker's box.
BROKER = ("", "queue", "", "", "held messages, each", "with its expiry", "", "", "dead letters")


def way() -> str:
    """Return the parts that a message meets on its way."""

    def parts() -> Iterator[str]:
        yield text(20, 30, "The way of a message", "title")
        yield box(20, 50, (170, 250), "store", "Broker", *BROKER)
        yield box(300, 50, (230, 250), "box", "Worker, main process")
        yield box(316, 84, (198, 44), "box", "Consumer", "claims, and gives to the pool")
        yield box(316, 140, (198, 44), "box", "Keeper", "extends what beats")
        yield box(316, 192, (198, 44), "box", "Reaper", "returns what expired")
        yield box(316, 244, (198, 44), "box", "Watchdog", "ends what is silent")
        yield box(640, 50, (200, 110), "box", "Task process", "the task", "context.beat()")
        yield box(
            640, 210, (200, 90), "store", "Beat board", "shared memory:", "beats, deadlines, flags"
        )
        yield arrow("190,92 316,104")
        yield text(212, 84, "1 claim", "soft")
        yield arrow("514,104 640,84")
        yield text(548, 84, "2 start", "soft")
        yield arrow("740,160 740,210", both=True)
        yield text(752, 190, "3 beat", "soft")
        yield arrow("640,240 514,170", both=True)
        yield text(566, 188, "4 look", "soft")
        yield arrow("316,168 190,180")
        yield text(206, 166, "5 extend", "soft")
        yield arrow("316,214 190,200")
        yield text(212, 224, "expired", "soft")
        yield arrow("316,122 190,148")
        yield text(196, 124, "6 acknowledge", "soft")

    return document(860, 320, "Broker, worker process, task process and beat board", parts())


def at(seconds: float) -> float:
    """Return where a second of the timeline is."""
    return LEFT + SCALE * seconds


def timeline() -> str:
    """Return a lease that is extended, lost and taken over; extension 120, interval 24."""
    extension, beats = 120, (0, 10, 20, 30, 40, 50, 60, 70, 80)
    sent, hang = (0, 24, 48, 72), 80
    expiry, taken, done = hang + extension, hang + extension + 8, 300

    def parts() -> Iterator[str]:
        yield text(20, 30, "A lease of 120 s: kept, lost, taken over", "title")
        yield text(20, 76, "worker A")
        yield bar(at(0), 60, (SCALE * hang, 22), "run")
        yield bar(at(hang), 60, (SCALE * (expiry - hang), 22), "late")
        yield text(at(100), 76, "hangs: no beat", "title")
        yield text(20, 112, "beats", "soft")
        for beat in beats:
            yield bar(at(beat), 100, (2, 14), "run")
        yield text(20, 142, "extensions", "soft")
        for second in (*sent, 96):
            yield arrow(f"{at(second):g},146 {at(second):g},128")
        yield text(at(103), 142, "one for the last beat, then none", "soft")
        yield text(20, 182, "lease", "soft")
        yield bar(at(0), 166, (SCALE * expiry, 22), "lease")
        yield bar(at(taken), 166, (SCALE * (done - 20 - taken), 22), "lease2")
        yield text(at(4), 182, "A's, until its last beat + lease_extension")
        yield text(at(taken + 4), 182, "B's, a greater token")
        yield text(20, 222, "worker B")
        yield bar(at(taken), 206, (SCALE * (done - taken - 20), 22), "next")
        for second, words, y in (
            (hang, "last beat", 262),
            (expiry, "deadline: beats raise LeaseLost", 262),
            (taken, "the message is returned, B starts", 282),
            (done - 20, "acknowledged", 262),
        ):
            anchor = "end" if second == expiry else "middle"
            x = f"{at(second):g}"
            yield f'<line class="mark" x1="{x}" x2="{x}" y1="52" y2="{y - 14}"/>'
            yield text(at(second), y, words, "soft", anchor)
        for second in range(0, 301, 60):
            yield text(at(second), 306, f"{second} s", "soft", "middle")

    return document(LEFT + 2 * 300 + 60, 322, "A lease over time, and its takeover", parts())


PICTURES = {"message-way.svg": way, "lease-timeline.svg": timeline}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (HERE / name).write_text(draw())
