"""The watermark while rows are parked."""

from weir.protocol.watermarks.watermark_hold import WatermarkHold


def test_parked_rows_hold_the_watermark_where_it_was():
    hold = WatermarkHold()
    assert hold.visible_ms(100, is_held=False) == 100
    assert hold.visible_ms(150, is_held=True) == 100, "the rows may have come before it rose"
    assert hold.visible_ms(160, is_held=True) == 100
    assert hold.visible_ms(170, is_held=False) == 170
    assert hold.visible_ms(180, is_held=True) == 170
