"""The watermark while rows are parked."""

from weir.protocol.watermark_hold import WatermarkHold


def test_parked_rows_hold_the_watermark_where_it_was():
    hold = WatermarkHold()
    assert hold.visible_ms(100, has_parked_rows=False) == 100
    assert hold.visible_ms(150, has_parked_rows=True) == 100, "the rows may have come before it rose"
    assert hold.visible_ms(160, has_parked_rows=True) == 100
    assert hold.visible_ms(170, has_parked_rows=False) == 170
    assert hold.visible_ms(180, has_parked_rows=True) == 170
