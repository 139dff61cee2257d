"""Addresses of the page's views of the made-up group."""

from urllib.parse import urlencode

from common.board.page.drawing import link

CASE = "sbhd-128x2x32x128-bfloat16"
BOARD = {"view": "board", "device": "gpu-b", "op": "rope", "track": "core"}


def board(**fields):
    return "#" + urlencode(BOARD | fields)


VIEWS = {
    "board": board(direction="backward", case=CASE, row="member04/rope"),
    "solution": link(view="solution", name="member04/rope", row=f"gpu-a/{CASE}/backward"),
    "compare": link(view="compare", one="member04/rope", other="member06/rope"),
    "devices": link(view="devices"),
}
