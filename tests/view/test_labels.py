from hypothesis import given
from hypothesis import strategies as st

from hasten.view.axis import LogAxis
from hasten.view.labels import Anchor, Box, place

anchors = st.lists(
    st.builds(
        Anchor, st.floats(0, 400), st.floats(0, 300), st.floats(1, 20), st.sampled_from(["", "a", "conv", "long name"])
    ),
    max_size=25,
)


@given(anchors)
def test_labels_cover_neither_each_other_nor_a_foreign_marker_nor_the_edge(given_anchors):
    labels = place(given_anchors, 400, 300)
    for i, label in enumerate(labels):
        assert label.box.inside(400, 300)
        assert not any(label.box.meets(other.box) for other in labels[:i])
        own = [a for a in given_anchors if a.text == label.text]
        for a in given_anchors:
            if a not in own:
                assert not label.box.meets(Box(a.x - a.radius, a.y - a.radius, a.x + a.radius, a.y + a.radius))


def test_a_lone_point_is_labelled_at_its_right():
    (label,) = place([Anchor(100, 100, 5, "conv")], 400, 300)
    assert label.align == "left"
    assert label.x > 105


def test_a_label_that_fits_nowhere_is_left_out():
    assert place([Anchor(100, 100, 5, "conv")], 400, 300, taken=[Box(0, 0, 400, 300)]) == []


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=9))
def test_a_log_axis_holds_its_values_and_has_a_few_ticks(values):
    axis = LogAxis.around(values, 500, flip=True)
    for value in values:
        assert 0 < axis.at(value) < 500
        assert abs(axis.value(axis.at(value)) / value - 1) < 1e-6
    ticks = axis.ticks(8)
    assert 1 <= len(ticks) <= 8
    assert all(axis.low <= tick <= axis.high for tick in ticks)


def test_ticks_are_round_numbers():
    assert LogAxis(0.5, 500, 700).ticks(8) == [1, 3, 10, 30, 100, 300]
    assert LogAxis(1, 10, 700).ticks(10) == [1, 2, 3, 5, 7, 10]
