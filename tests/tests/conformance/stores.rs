//! Runs every behaviour of `leasehold_tests::conformance` on every store.

use leasehold_tests::{
    conformance::{
        added_locks, attempts, closures, hand_offs, inspection, known_mistakes, lease_ends,
        lease_options, leases, limits, listing, queue, recovery, reentry, repeats, revocation,
        seeds, semaphores, sharing, silent_brokers, span_limits, streams, token_floors, watches,
    },
    store_fixture::{InitialState, StoreFixture},
};

macro_rules! on_every_store {
    ($($start:ident $theme:ident { $($behaviour:ident)* })*) => {
        mod memory {
            use super::*;
            $($(
                #[tokio::test(start_paused = true)]
                async fn $behaviour() {
                    StoreFixture::memory(InitialState::$start, $theme::$behaviour).await;
                }
            )*)*
        }

        mod redis {
            use super::*;
            $($(
                #[tokio::test]
                async fn $behaviour() {
                    StoreFixture::redis(InitialState::$start, $theme::$behaviour).await;
                }
            )*)*
        }

        mod cluster {
            use super::*;
            $($(
                #[tokio::test]
                async fn $behaviour() {
                    StoreFixture::cluster(InitialState::$start, $theme::$behaviour).await;
                }
            )*)*
        }

        mod sentinel {
            use super::*;
            $($(
                #[tokio::test]
                async fn $behaviour() {
                    StoreFixture::sentinel(InitialState::$start, $theme::$behaviour).await;
                }
            )*)*
        }
    };
}

on_every_store! {
    Trusted token_floors {
        a_grant_has_a_larger_token_than_the_floor
        a_hand_off_has_a_larger_token_than_the_floor
        a_record_is_kept_until_the_clock_has_passed_its_last_token
        a_floor_that_the_clock_has_passed_has_no_effect
    }
    Trusted lease_ends {
        an_expiry_is_reported_once_to_the_broker_that_detected_it
        a_release_is_not_reported_as_a_lease_end
        an_end_by_max_hold_is_reported_with_that_cause
        a_revocation_is_reported_with_its_reason
        a_lapse_is_reported_as_an_expiry
    }
    Trusted repeats {
        a_repeat_of_a_held_call_renews_the_lease
        a_repeat_at_another_broker_gets_the_same_grant
        a_repeat_of_a_held_call_with_other_arguments_is_refused
        a_repeat_of_a_waiting_call_with_other_arguments_is_refused
        a_repeat_by_another_caller_is_refused
        a_repeat_of_a_waiting_call_keeps_its_place
        a_repeat_at_another_broker_moves_the_waiter_there
        a_repeat_of_a_waiting_call_extends_its_wait
        a_repeat_of_a_waiting_call_never_shortens_its_wait
        a_repeat_that_does_not_wait_leaves_the_waiter_queued
        a_repeat_after_the_hand_off_gets_the_grant
        a_repeat_of_a_waiting_call_is_granted_a_lock_that_became_free
        a_repeat_after_the_release_is_told_that_the_lease_is_over
        a_repeat_after_the_expiry_is_told_that_the_lease_is_over
        an_expired_lease_is_remembered_for_a_minute
        a_released_lease_is_remembered_for_two_seconds_however_many_follow
        the_last_sixteen_released_leases_are_remembered_however_old
    }
    Trusted reentry {
        a_lease_enters_its_lock_again_with_the_same_token
        t21_a_repeated_entry_counts_once
        t21_a_repeated_release_of_an_entry_counts_once
        a_lock_whose_last_entry_is_rolled_back_after_a_release_is_reported_as_released
        the_lock_is_free_when_the_last_entry_has_left_in_any_order
        a_release_of_the_lease_ends_every_entry
        an_entry_needs_the_token_of_the_hold
        an_entry_after_the_end_of_the_lease_is_refused
        an_entry_never_waits
        t19_an_entry_renews_and_adds_nothing_up
        an_entry_keeps_the_ttl_of_the_lease
        a_repeated_entry_with_other_arguments_is_refused
        t22_the_same_owner_without_the_lease_does_not_enter
        t20_leaving_the_last_exclusive_entry_is_the_downgrade
        leaving_one_of_two_exclusive_entries_is_no_downgrade
        t18_shared_to_exclusive_is_denied
        t18_after_a_downgrade_the_way_back_is_denied
        permits_enter_up_to_those_held
        the_strongest_entry_left_counts
        an_entry_of_another_kind_is_a_mismatch
        t21_a_released_entry_is_refused_for_two_seconds
        t21_an_entry_that_comes_after_its_release_is_refused
        a_lease_enters_at_most_sixty_four_times
        cancelling_the_last_attempt_of_an_entry_takes_only_that_entry
        cancelling_the_call_that_made_the_lease_leaves_its_other_entries
        the_call_that_created_the_lease_has_ended_after_its_entry_is_released
        an_expiry_ends_every_entry
        entering_past_max_hold_is_refused
        one_reader_of_many_re_enters_and_releases_its_entry
        seed_reentrant_unlock_answers_nil_0_and_1
    }
    Trusted added_locks {
        an_added_lock_is_held_under_the_same_lease
        an_added_lock_is_waited_for_in_the_queue
        a_repeat_of_an_added_lock_gets_the_same_grant
        adding_a_lock_that_the_lease_holds_enters_it
        a_released_lock_is_added_again
        a_lock_that_was_added_again_is_reported_as_released_to_its_older_token
        the_release_of_an_added_lock_is_remembered_until_it_would_have_expired
        a_lock_that_expires_after_it_was_added_again_is_reported_as_expired
        t21_a_late_copy_of_an_add_whose_lock_was_released_is_refused
        a_lock_that_expired_is_not_added_again
        two_adds_of_one_lease_make_one_holder
        a_queued_add_enters_the_lock_if_another_add_of_its_lease_was_granted
        a_queued_exclusive_add_of_a_lease_that_holds_a_shared_lock_is_denied
        a_queued_add_of_a_lease_that_holds_the_lock_blocks_no_other_waiter
        an_add_waits_for_a_promise_to_its_own_lease
        cancelling_an_add_leaves_the_lease_its_other_locks
    }
    Trusted streams {
        a_lease_on_a_stream_is_renewed_from_it
        a_renewal_from_elsewhere_extends_nothing
        a_unary_lease_is_put_on_a_stream_without_being_extended
        a_newer_attachment_moves_the_lease_and_the_old_stream_is_told
        a_move_keeps_token_entries_and_expiry
        an_attachment_that_is_no_newer_is_stale_and_changes_nothing
        a_lease_that_is_over_is_not_attached
        attaching_past_max_hold_is_refused
        a_repeat_on_another_stream_moves_the_lease
        a_repeat_on_another_stream_moves_the_waiter
        a_call_repeated_on_another_stream_drops_its_attempts_on_the_old_one
        a_unary_call_repeated_on_a_stream_keeps_its_unary_attempt
        the_end_of_an_old_stream_does_nothing_to_a_lease_that_moved
        a_lease_on_a_stream_is_changed_there_only
        a_lapse_ends_the_lease_like_an_expiry
        a_lapse_is_followed_by_the_lock_delay
        one_reader_of_many_moves_alone
        a_renewal_returns_the_disconnect_grace_and_the_queue_length
        a_waiter_has_its_sequence_and_the_last_one_its_position
    }
    Trusted attempts {
        cancelling_an_older_attempt_keeps_the_newer_queued
        cancelling_the_newest_attempt_gives_the_waiter_back_to_the_older
        cancelling_one_attempt_of_a_holder_keeps_the_lock
        cancelling_the_last_attempt_of_a_holder_hands_the_lock_on
        cancelling_the_last_attempt_of_a_waiter_removes_it_from_the_queue
        cancelling_an_attempt_twice_removes_it_once
        an_attempt_that_arrives_twice_counts_once
        an_attempt_cancelled_before_it_arrived_is_refused
        an_attempt_cancelled_before_it_arrived_is_not_queued
        a_tombstone_refuses_its_own_attempt_only
        a_tombstone_is_kept_for_two_seconds
        cancelling_nine_repeats_of_a_granted_call_keeps_its_lease
        cancelling_nine_repeats_of_a_granted_entry_keeps_the_entry
        a_ninth_queued_attempt_is_refused_and_the_other_eight_stay_queued
        attempts_at_a_broker_that_is_gone_do_not_count_towards_the_limit
        a_cancelled_call_may_come_again
    }
    Trusted leases {
        a_renewal_extends_by_the_present_ttl
        a_renewal_changes_the_ttl_from_then_on
        a_renewal_never_shortens
        a_renewal_keeps_the_time_of_the_grant
        locks_that_are_renewed_together_have_a_result_each
        any_broker_may_renew_and_release
        a_lease_that_the_lock_never_knew_is_not_found
        a_repeated_release_is_reported_as_repeated
        a_release_after_the_expiry_is_reported_as_late
        a_release_after_the_expiry_hands_the_lock_on
        a_released_lock_is_free_at_once
        tokens_rise_over_release_expiry_and_cancel
        tokens_rise_when_the_clock_steps_back
        tokens_rise_above_an_unused_token
        locks_count_their_tokens_apart
    }
    Trusted queue {
        waiters_of_all_brokers_share_one_queue
        a_call_that_leaves_does_not_change_the_order_of_the_others
        a_call_without_a_wait_is_rejected_while_others_are_queued
        a_free_lock_without_a_queue_is_granted_at_once_to_a_waiting_call
        a_waiter_receives_the_time_of_the_next_possible_grant
        a_waiter_behind_a_provisional_grant_receives_the_time_of_its_lapse
        a_holder_that_expires_is_followed_by_the_next_waiter
        waiters_past_their_time_make_room_for_others
        a_release_reaches_a_waiter_behind_hundreds_past_their_time
        an_expiry_reaches_a_waiter_behind_hundreds_past_their_time
        t37_the_queue_is_limited_and_rejects_calls_when_full
        a_waiter_is_granted_within_the_clock_tolerance_after_its_wait
        a_waiter_is_not_granted_after_its_wait_and_the_clock_tolerance
    }
    Trusted hand_offs {
        a_hand_off_within_a_broker_is_final
        a_new_waiter_receives_the_last_token_before_it_was_queued
        a_hand_off_to_another_broker_is_provisional
        a_claim_makes_a_hand_off_final
        a_repeat_of_the_call_claims_the_hand_off
        an_unclaimed_hand_off_lapses_after_three_seconds
        a_hand_off_with_a_short_ttl_lapses_with_it
        an_unclaimed_waiter_keeps_its_place_and_is_passed_over
        an_unclaimed_waiter_is_granted_again_once_its_broker_touches
        an_unclaimed_waiter_is_granted_again_once_its_call_is_repeated
        an_unclaimed_hand_off_is_no_ended_lease
        a_claim_may_name_another_ttl
        cancelling_a_provisional_hand_off_hands_the_lock_on
        releasing_a_provisional_hand_off_hands_the_lock_on
        a_touch_returns_a_missed_final_grant
        a_touch_returns_a_missed_provisional_grant
        a_touch_grants_a_lock_that_became_free
        a_touch_returns_the_time_of_the_next_touch
    }
    Trusted silent_brokers {
        waiters_of_a_silent_broker_are_passed_over_and_keep_their_place
        a_broker_that_touches_is_not_silent
        a_silent_broker_is_notified_to_rejoin_the_queue
        a_broker_without_a_queued_waiter_is_notified_to_rejoin
        a_waiter_that_was_dropped_joins_again_at_the_tail
        a_repeat_at_a_live_broker_keeps_the_queue_position_of_a_silent_one
        a_queued_call_keeps_its_position_while_one_of_its_brokers_is_alive
        cancelling_the_last_attempt_at_a_live_broker_releases_the_lock
        a_stall_of_the_store_makes_no_broker_silent
        a_lock_that_expired_in_a_stall_goes_to_the_next_waiter
        a_call_of_a_silent_broker_itself_is_granted
    }
    Trusted closures {
        at_least_closes_a_lock_after_a_release
        at_least_closes_a_lock_after_an_expiry
        at_least_closes_a_lock_after_a_disconnect_grace
        at_least_is_over_after_a_longer_hold
        at_least_does_not_follow_a_grant_that_was_not_received
        a_released_entry_closes_a_lock_with_at_least
        waiters_keep_their_positions_until_at_least_has_passed
        an_operator_closes_a_lock_behind_its_holder
        a_lock_that_is_opened_is_granted_to_the_next_waiter
        an_operator_opens_a_lock_that_a_lease_has_closed
        a_closure_is_never_shortened
        a_lock_that_nobody_has_used_can_be_closed
    }
    Trusted inspection {
        an_unknown_lock_is_unknown
        a_holder_is_shown_with_owner_token_and_times
        waiters_are_shown_in_order_with_their_times
        a_waiter_keeps_the_time_at_which_it_joined
        at_most_a_hundred_waiters_are_shown_and_all_are_counted
        an_expired_holder_is_not_shown
        a_rejected_call_receives_the_holder_and_the_queue_length
        inspection_grants_nothing
    }
    Trusted listing {
        a_list_shows_what_is_held_waited_for_or_closed
        a_lock_that_is_idle_is_not_listed
        a_list_contains_the_same_state_as_an_inspection
        a_list_in_steps_of_any_size_shows_each_lock_once
        names_of_any_kind_are_found_by_their_beginnings
        namespaces_that_begin_alike_are_kept_apart
        a_list_is_narrowed_to_an_owner
        locks_that_stay_are_listed_while_others_come_and_go
        a_cursor_of_another_store_is_stale
        a_lock_with_a_set_limit_alone_is_listed
        an_owner_is_found_among_those_who_wait
    }
    Recovering recovery {
        a_recovering_store_grants_nothing_and_says_for_how_long
        a_recovering_store_grants_after_the_quarantine
        a_waiter_joins_a_recovering_store_again_and_is_granted_afterwards
        a_waiter_leaves_a_recovering_store
        a_recovering_store_answers_renewals_and_releases
        a_recovering_store_refuses_a_call_that_would_not_wait
    }
    Trusted seeds {
        seed_try_lock_takes_lock_and_expiry_in_one_step
        seed_try_lock_of_a_held_lock_fails_at_once_and_names_the_holder
        seed_blocking_lock_is_granted_when_the_holder_releases
        seed_blocking_lock_is_granted_nothing_after_its_time_out
        seed_lock_time_out_frees_the_lock
        seed_lock_extension_moves_the_time_out
        seed_lock_without_ttl_is_healed
        seed_getset_race_for_an_expired_lock_has_one_winner
        seed_unlock_only_by_its_holder
        seed_automatic_renewal_holds_the_lock_for_any_time
        seed_is_locking_is_an_inspection_that_changes_nothing
        seed_hand_off_grants_in_the_release_and_then_notifies
    }
    Trusted sharing {
        readers_hold_together
        a_writer_waits_for_the_last_reader
        a_reader_waits_for_the_writer
        t16_a_queued_writer_stops_later_readers
        consecutive_readers_at_the_head_enter_together
        readers_of_several_brokers_enter_together
        a_reader_joins_readers_that_have_not_claimed_yet
        a_reader_that_lapses_gives_its_weight_back
        t15_each_reader_expires_by_itself
        a_waiter_is_told_when_the_first_reader_may_expire
        t17_a_writer_that_gives_up_stops_no_reader
        t17_a_writer_whose_broker_is_silent_stops_no_reader
        a_reader_releases_its_own_hold_only
        a_repeat_of_a_reader_finds_its_own_lease
        hundreds_of_readers_enter_in_one_release
        a_thousand_hold_and_the_next_waits
        each_of_hundreds_of_tokens_is_live_until_its_release
        a_token_that_was_never_given_is_stale_or_unknown
        readers_that_expire_together_are_all_remembered
        waiters_are_shown_with_their_modes
        seed_read_locks_admit_readers_and_keep_writers_out
        seed_a_write_lock_keeps_readers_and_writers_out
    }
    Trusted semaphores {
        permits_are_granted_up_to_the_limit
        t25_a_heavy_call_at_the_head_is_passed_by_no_light_one
        t25_one_release_admits_all_that_fit
        t23_permits_of_a_dead_holder_come_back
        t23_another_limit_is_a_mismatch
        a_limit_of_zero_takes_the_one_in_use
        a_limit_of_zero_needs_one_in_use
        more_permits_than_the_limit_in_use_are_a_mismatch
        a_lock_in_use_is_one_kind_of_lock
        a_line_keeps_the_limit_in_use
        a_repeat_never_checks_the_limit
        renewals_keep_the_permits
        slots_that_became_free_are_used_again
    }
    Trusted watches {
        changes_are_not_published_without_a_watch
        a_holder_comes_and_goes
        a_closure_begins_and_ends
        changes_of_a_queue_are_published
        a_hand_off_to_another_broker_is_published_when_it_is_claimed
        waiters_that_leave_the_queue_are_published
        the_cause_of_a_lease_end_is_reported
        a_repeat_is_not_published_again
        changes_are_not_published_after_the_last_watch
    }
    Trusted revocation {
        a_revoked_lease_is_renewed_no_more_and_holds_until_it_has_run_out
        a_revoked_lease_that_is_given_back_is_free_at_once
        a_revocation_never_shortens_a_validity
        a_grace_lets_the_lease_be_renewed_until_its_end
        the_earliest_end_of_several_revocations_counts
        a_revocation_later_than_max_hold_changes_no_end
        an_unsafe_revocation_frees_the_lock_now
        an_unsafe_revocation_hands_the_lock_on
        a_revocation_that_is_only_asked_for_changes_nothing
        a_revocation_hits_no_other_lease
        a_revoked_lease_is_remembered_for_a_minute
        a_lock_delay_of_a_revocation_closes_the_lock_however_it_ends
        the_lock_delay_of_the_lease_closes_the_lock_only_if_it_runs_out
        the_stream_of_a_revoked_lease_is_notified
        a_revoked_lease_is_put_on_no_stream
        entering_a_revoked_lease_is_refused
        a_revocation_takes_one_of_several_holders
        a_revocation_forgets_no_earlier_end
        an_unclaimed_hand_off_cannot_be_revoked
    }
    Trusted limits {
        t24_a_set_limit_overrides_that_of_callers
        t24_shrinking_stops_grants_until_enough_have_left
        t24_growing_admits_waiters_at_once
        t24_waiters_that_can_never_fit_are_refused
        a_waiter_that_can_never_fit_is_found_by_touch
        t24_a_repeat_never_checks_a_set_limit
        a_set_limit_keeps_other_kinds_of_lock_out
        a_limit_is_not_set_on_another_kind_of_lock_in_use
        a_set_limit_may_be_set_again
        a_set_limit_is_kept_until_it_is_removed
        an_idle_lock_whose_limit_was_removed_is_forgotten
        a_limit_is_not_set_on_a_lock_that_is_waited_for_exclusively
        a_removed_limit_lets_other_kinds_of_lock_in
        a_removed_limit_stays_in_use_until_the_lock_is_idle
        removing_a_limit_that_is_not_set_changes_nothing
        the_limit_and_the_used_permits_are_shown
        a_hand_off_has_the_limit_in_use
    }
    Trusted lease_options {
        max_hold_cuts_the_first_validity
        max_hold_cuts_every_renewal
        a_renewal_past_max_hold_is_refused
        a_lease_past_max_hold_can_be_released
        max_hold_counts_from_the_grant
        a_repeat_past_max_hold_is_told_that_the_lease_is_over
        a_longer_ttl_does_not_pass_max_hold
        seed_automatic_renewal_ends_at_its_cap
        lock_delay_closes_a_lock_after_an_expiry
        lock_delay_counts_from_the_expiry_not_from_its_detection
        lock_delay_does_not_follow_a_release
        lock_delay_does_not_follow_a_cancelled_call
        lock_delay_does_not_follow_an_unclaimed_hand_off
        lock_delay_keeps_waiters_waiting_and_says_how_long
        lock_delay_of_a_reader_closes_the_whole_lock
        the_longest_lock_delay_counts
    }
    Trusted known_mistakes {
        t01_a_lease_of_another_lock_releases_nothing
        t02_a_late_release_leaves_the_next_holder_alone
        t02_an_old_token_of_the_same_lease_releases_nothing
        t03_renewal_never_creates_a_lock
        t03_renewal_past_the_expiry_is_refused_although_the_lock_is_free
        t03_renewal_never_extends_the_lease_of_another
        t04_a_renewal_after_the_release_is_rejected_as_released
        t04_renewal_and_release_at_once_leave_the_lock_free
        t05_a_cancelled_waiter_is_never_granted
        t05_an_undelivered_grant_goes_to_the_next_waiter
        t07_a_repeat_after_a_lost_reply_gets_the_same_grant
        t08_a_waiter_past_its_time_is_not_granted_but_the_next_is
        t09_waiters_of_a_dead_broker_do_not_stay_queued
        t10_waiters_of_a_live_broker_are_never_purged
        t10_a_broker_whose_waiters_were_dropped_is_notified
        t11_each_waiter_has_its_own_deadline
        t12_all_times_are_those_of_the_store
        t13_a_newcomer_never_passes_a_waiter
        t13_the_next_waiter_gets_an_expired_lock_whichever_broker_detects_it
        t27_a_token_belongs_to_a_grant_and_repeats_do_not_change_it
        t28_a_former_holder_never_learns_the_token_of_the_next
        t35_an_idle_lock_is_forgotten
        t35_an_abandoned_line_is_forgotten
        t35_commands_that_find_nothing_leave_nothing
        t36_a_command_sees_its_own_lock_only
        t38_names_that_look_like_keys_do_not_collide
    }
}

/// Runs behaviours on the stores whose era limits the spans of leases.
macro_rules! on_stores_with_span_limits {
    ($($behaviour:ident)*) => {
        mod memory_span_limits {
            use super::*;
            $(
                #[tokio::test(start_paused = true)]
                async fn $behaviour() {
                    StoreFixture::memory(InitialState::Trusted, span_limits::$behaviour).await;
                }
            )*
        }

        mod redis_span_limits {
            use super::*;
            $(
                #[tokio::test]
                async fn $behaviour() {
                    StoreFixture::redis(InitialState::Trusted, span_limits::$behaviour).await;
                }
            )*
        }
    };
}

on_stores_with_span_limits! {
    a_validity_is_cut_until_the_limit_is_raised
    a_lowered_limit_shortens_no_expiry
    a_call_whose_lock_delay_is_too_long_is_rejected_until_the_limit_is_raised
    a_lease_over_the_limit_is_not_renewed_and_is_held_until_its_expiry
    a_waiter_over_the_limit_is_passed_over_and_rejected_when_it_repeats
    a_hand_off_over_the_limit_is_not_claimed
}
