"""Hand-offs while the decode worker's device is still busy with the last step (protocol 4.4)."""

from tests.kvtransfer.machine.house import House
from tests.kvtransfer.machine.written_model import answer


def test_no_read_goes_to_a_block_that_a_step_under_way_still_writes() -> None:
    """A step is under way for a request that is cancelled; while the device is busy another
    request gets room, and its whole prompt is read. The blocks that came back last go out first."""
    house = House(checksums=False, ahead=True)
    first = house.new_try([1, 2, 3, 4, 5], 1, max_tokens=8)
    house.send_prefill(first)
    house.send_decode(first)
    while len(first.tokens.get(0, ())) < 2:
        house.run_smoothly()
    second = house.new_try([6, 7, 8, 9, 10, 11, 12, 13], 1, max_tokens=3)
    house.send_prefill(second)
    while house.turn("prefill"):
        pass
    house.send_decode(second)
    house.move_all()
    house.cancel_decode(first)
    house.hurried = True
    house.turn("decode")
    house.hurried = False
    while house.run_smoothly():
        house.check()
    assert second.tokens == {0: answer(second.token_ids, 3)}
    house.check_all_back()
    house.close()
