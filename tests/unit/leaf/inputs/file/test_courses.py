"""Courses of the machine of followed files that once lost lines or doubled them, each told by its rules."""

from __future__ import annotations

from tests.unit.leaf.inputs.file.test_generations import Files, RotatedFilesMatchToo


def test_a_file_that_is_renamed_between_the_parts_of_a_piece_goes_on_behind_it() -> None:
    course = Files()
    course.begin({"a"})
    course.write("a", 1)
    course.die_between_parts()
    course.rename_to_another_path_that_is_followed("a", again=True, restarts=True)
    course.teardown()


def test_a_file_that_is_copied_and_truncated_before_a_piece_of_it_begins_in_the_copy_where_it_began() -> None:
    course = RotatedFilesMatchToo()
    course.begin({"a"})
    course.die_between_parts()
    course.write("a", 1)
    course.rotate_by_copying_and_truncating("a")
    course.look(take=False)
    course.die_between_parts()
    course.delete("a", rest=False)
    course.teardown()


def test_a_file_whose_place_is_in_its_copy_has_no_piece_that_is_read_again() -> None:
    course = RotatedFilesMatchToo()
    course.begin({"a"})
    course.rotate_by_copying_and_truncating("a")
    course.write("a", 1)
    course.rename_to_another_path_that_is_followed("a", again=False, restarts=True)
    course.die_between_parts()
    course.teardown()


def test_a_file_that_is_copied_and_truncated_before_any_of_it_is_stored_is_read_from_its_copy() -> None:
    course = RotatedFilesMatchToo()
    course.begin({"b"}, stores=False)
    course.rotate_by_copying_and_truncating("b")
    course.write("a", 1)
    course.die_between_parts()
    course.teardown()


def test_a_file_that_is_cut_grows_and_is_cut_again_repeats_no_line() -> None:
    course = Files()
    course.begin({"a"}, stores=False)
    course.write_more_than_a_batch("a")
    course.cut_off("a", size=1, nuls=0, restarts=False)
    course.write_more_than_a_batch("a")
    course.cut_off("a", size=1, nuls=0, restarts=False)
    course.teardown()


def test_a_copy_of_a_file_that_took_the_place_of_a_deleted_one_is_named_where_both_are_new() -> None:
    course = RotatedFilesMatchToo()
    course.begin({"a"})
    course.delete("a", rest=False)
    course.write("a", 1)
    course.rotate_slowly_by_copying_and_truncating("a", looks=0, writes=True)
    course.teardown()


def test_what_a_file_held_before_it_was_cut_is_not_known_again_where_no_catalogue_can_be_kept() -> None:
    course = Files()
    course.begin({"a"}, stores=False)
    course.delete("a", rest=False)
    course.write_more_than_a_batch("b")
    course.die_between_parts()
    course.the_disk_takes_the_catalogue(keeps=False)
    course.cut_off("b", size=1, nuls=1, restarts=False)
    course.cut_off("b", size=1, nuls=0, restarts=False)
    course.die_between_parts()
    course.teardown()


def test_a_copy_that_was_never_kept_is_named_where_its_file_was_read_further() -> None:
    course = Files()
    course.begin({"a"}, stores=False)
    course.the_disk_takes_the_catalogue(keeps=False)
    course.rotate_slowly_by_copying_and_truncating("a", looks=0, writes=True)
    course.die_between_parts()
    course.teardown()


def test_a_copy_that_is_read_while_no_catalogue_can_be_kept_is_read_again_after_a_kill() -> None:
    course = Files()
    course.begin({"a", "c"}, stores=False)
    course.the_disk_takes_the_catalogue(keeps=False)
    course.change_the_paths(settles=False)
    course.rotate_slowly_by_copying_and_truncating("c", looks=0, writes=True)
    course.change_the_paths(settles=True)
    course.die_between_parts()
    course.teardown()


def test_a_file_that_was_cut_is_read_again_after_a_kill_where_it_began_though_no_catalogue_is_kept() -> None:
    course = Files()
    course.begin({"c", "a"}, stores=False)
    course.the_disk_takes_the_catalogue(keeps=False)
    course.write_more_than_a_batch("c")
    course.cut_off("c", size=400, nuls=0, restarts=True)
    course.write("c", 2)
    course.die_between_parts()
    course.teardown()


def test_a_generation_that_was_dropped_has_no_piece_that_is_read_again() -> None:
    course = Files()
    course.begin({"a", "c"})
    course.write_more_than_a_batch("a")
    course.reader.settle()
    course.the_disk_takes_the_catalogue(keeps=False)
    course.cut_off("a", size=1, nuls=0, restarts=False)
    course.write("c", 2)
    course.die_between_parts()
    course.teardown()
    assert not course.reader.twice


def test_lines_behind_fewer_nuls_than_stood_there_before_are_read() -> None:
    course = Files()
    course.begin({"a"}, stores=False)
    course.write_more_than_a_batch("a")
    course.cut_off("a", size=1, nuls=2, restarts=False)
    course.cut_off("a", size=1, nuls=1, restarts=False)
    course.teardown()


def test_a_copy_of_which_only_the_position_tells_is_no_piece_that_is_read_again() -> None:
    course = Files()
    course.begin({"a", "b"})
    course.the_disk_takes_the_catalogue(keeps=False)
    course.rotate_slowly_by_copying_and_truncating("a", looks=1, writes=False)
    course.write("b", 2)
    course.die_between_parts()
    course.teardown()
    assert not course.reader.doubts


def test_a_short_copy_is_named_where_its_file_is_emptied_read_further_and_not_held_open() -> None:
    course = Files()
    course.begin({"a"}, stores=False)
    course.have_descriptors(1)
    course.rotate_slowly_by_copying_and_truncating("a", looks=0, writes=True)
    course.teardown()


def test_a_piece_that_is_read_again_from_a_copy_is_stored_once_where_its_file_was_renamed() -> None:
    course = Files()
    course.begin({"a"}, stores=False)
    course.die_between_parts()
    course.look(take=False)
    course.rotate_by_copying_and_truncating("a")
    course.time_passes()
    course.rename_to_another_path_that_is_followed("a", again=False, restarts=False)
    course.teardown()


def test_the_inode_of_a_file_that_was_emptied_unread_tells_no_other_file() -> None:
    course = Files()
    course.begin({"b", "c"}, stores=False)
    course.inodes_are_reused(True)
    course.rotate_by_copying_and_truncating("b")
    course.delete("b", rest=True)
    course.replace_by_a_grown_copy("c", restarts=True, writes=False)
    course.write_more_than_a_batch("c")
    course.cut_off("c", nuls=2235, restarts=True, size=1)
    course.teardown()


def test_a_copy_with_a_followed_name_is_named_where_no_catalogue_tells_that_it_was_a_copy() -> None:
    course = RotatedFilesMatchToo()
    course.begin({"b", "c"}, stores=False)
    course.the_disk_takes_the_catalogue(False)
    course.rotate_slowly_by_copying_and_truncating("c", looks=0, writes=True)
    course.give_a_rotated_file_a_followed_name("c")
    course.change_the_paths(False)
    course.teardown()
    assert any("archived-0x.log" in text for text in course.reader.twice)


def test_a_file_that_was_left_behind_its_nuls_has_no_piece_that_is_read_again() -> None:
    course = Files()
    course.begin({"b", "c"}, stores=False)
    course.write_nuls("c", 2)
    course.the_disk_takes_the_catalogue(False)
    course.delete("c", rest=True)
    course.write_more_than_a_batch("b")
    course.die_between_parts()
    course.teardown()


def test_a_piece_is_read_again_from_no_file_that_holds_other_lines_by_then() -> None:
    course = RotatedFilesMatchToo()
    course.begin({"c"}, stores=False)
    course.die_between_parts()
    course.look(take=False)
    course.rotate_by_copying_and_truncating("c")
    course.write("c", 3)
    course.write_in_two_parts("b")
    course.teardown()


def test_a_short_new_file_is_no_copy_of_a_file_that_the_next_look_finds() -> None:
    course = RotatedFilesMatchToo()
    course.begin({"b"}, stores=False)
    course.the_disk_takes_the_catalogue(False)
    course.replace_by_a_grown_copy("b", restarts=False, writes=False)
    course.die_between_parts()
    course.write_in_two_parts("a")
    course.teardown()
    assert not course.reader.doubts


def test_a_rotated_file_that_is_taken_for_another_path_is_named_where_the_catalogue_is_older() -> None:
    course = RotatedFilesMatchToo()
    course.begin({"b"}, stores=False)
    course.back_up_the_state_directory()
    course.rename_over_another("b", "c", rotations=2, looks=0, restarts=False)
    course.rename_over_another("c", "b", rotations=0, looks=0, restarts=False)
    course.write_more_than_a_batch("b")
    course.delete("c", rest=False)
    course.restore_the_state_directory()
    course.delete("a", rest=False)
    course.teardown()
    assert [text for text in course.reader.twice if "new to an older state" in text and "c.log.1" in text]


def test_an_older_catalogue_is_named_where_a_piece_is_read_again() -> None:
    course = Files()
    course.begin({"a", "b", "c"}, stores=False)
    course.back_up_the_state_directory()
    course.rename_over_another("a", "b", rotations=1, looks=1, restarts=False)
    course.die_between_parts()
    course.write("a", 1)
    course.die_between_parts()
    course.restore_the_state_directory()
    course.teardown()


def test_lines_behind_a_cut_that_no_catalogue_tells_of_are_named() -> None:
    course = Files()
    course.begin({"c"}, stores=False)
    course.write_more_than_a_batch("c")
    course.the_disk_takes_the_catalogue(False)
    course.cut_off("c", nuls=0, restarts=False, size=1)
    course.restore_an_older_copy_that_grew("c", restarts=True, size=1)
    course.teardown()
    assert course.reader.lost
