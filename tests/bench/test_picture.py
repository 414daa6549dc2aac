from xml.etree import ElementTree as ET

from leadsman_bench.picture import Mark, Page, draw, draw_all
from matplotlib.image import imread

PAGE = Page(title="A <run>", subtitle="two engines", rows=[("within 1 s", "99.0 %")])


def marks():
    return [
        Mark(worker="fast", predicted=0.2, actual=0.21, cache_matched=True),
        Mark(worker="fast", predicted=2.0, actual=4.0, cache_matched=False),
        Mark(worker="slow", predicted=0.0, actual=30.0, measured=False),
    ]


def test_a_run_is_drawn_in_three_formats(tmp_path):
    png, svg, page = draw_all(marks(), PAGE, tmp_path)

    assert imread(png).shape[0] > 1000
    assert ET.fromstring(svg.read_text()).tag.endswith("svg")
    assert "A &lt;run&gt;" in page.read_text()
    assert "<td>99.0 %</td>" in page.read_text()


def test_the_same_run_gives_the_same_drawing(tmp_path):
    first = draw_all(marks(), PAGE, tmp_path, "a")[1].read_text()

    second = draw_all(marks(), PAGE, tmp_path, "b")[1].read_text()

    assert first == second


def test_every_request_is_on_the_picture():
    figure = draw(marks(), PAGE)

    scatters = figure.axes[0].collections[2:]
    drawn = [place for scatter in scatters for place in scatter.get_offsets().data.tolist()]
    assert sorted(drawn) == [[0.01, 30.0], [0.2, 0.21], [2.0, 4.0]]


def test_the_legend_counts_hollow_marks_and_crosses():
    figure = draw(marks(), PAGE)

    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]

    assert "cache estimate differed (1)" in labels
    assert "curve unmeasured (1)" in labels
    assert "fast (2)" in labels


def test_a_run_without_requests_is_drawn_too(tmp_path):
    png, *_ = draw_all([], PAGE, tmp_path)

    assert png.stat().st_size > 0
