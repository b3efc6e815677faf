"""Makes the pictures of the READMEs: server/console/pictures/*.png, at most 150 KB each."""

import pathlib

import support

PICTURES = pathlib.Path(__file__).resolve().parents[2] / "server" / "console" / "pictures"
MAX_BYTES = 150_000


def main():
    case = support.ConsoleCase()
    case.setUp()
    context = support.browser().new_context(viewport={"width": 1200, "height": 700},
                                            color_scheme="light", reduced_motion="reduce")
    page = context.new_page()
    page.goto(support.OPEN_URL)
    page.get_by_text("Talk to a model").wait_for()
    page.get_by_role("button", name="Settings").click()
    for name, value in (("Temperature", "0.7"), ("Seed", "7"), ("Max tokens", "120")):
        page.get_by_label(name).fill(value)
    page.get_by_role("button", name="Settings").click()
    case.ask(page, "Tell me a story about a dog.")
    answer = page.locator(".message.answer")
    answer.get_by_role("button", name="Tokens").click()
    answer.locator(".tok").nth(9).hover()
    page.locator(".scroller").evaluate("(el) => { el.scrollTop = el.scrollHeight; }")
    PICTURES.mkdir(exist_ok=True)
    target = PICTURES / "chat.png"
    page.screenshot(path=str(target))
    size = target.stat().st_size
    print(f"{target}: {size} bytes")
    assert size <= MAX_BYTES, f"{target} is larger than {MAX_BYTES} bytes"
    context.close()


if __name__ == "__main__":
    main()
