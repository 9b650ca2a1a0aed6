//! Behaviours of `leasehold_tests::conformance` that hold on several independent nodes (RedLock).
//! Excluded are behaviours that need locks other than exclusive locks, a queue across brokers, a
//! wait timed by the store's clock, a touch that grants (a broker serves its own queue on this
//! store), or a grant at the exact time of a clock that has just jumped.

use leasehold_tests::{
    conformance::{
        added_locks, attempts, closures, hand_offs, inspection, known_mistakes, lease_ends,
        lease_options, leases, listing, queue, recovery, reentry, repeats, revocation, seeds,
        streams,
    },
    store_fixture::{InitialState, StoreFixture},
};

macro_rules! on_redlock {
    ($($start:ident $theme:ident { $($behaviour:ident)* })*) => {
        $($(
            #[tokio::test]
            async fn $behaviour() {
                StoreFixture::redlock(InitialState::$start, $theme::$behaviour).await;
            }
        )*)*
    };
}

on_redlock! {
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
        a_repeat_by_another_caller_is_refused
        a_repeat_that_does_not_wait_leaves_the_waiter_queued
        a_repeat_after_the_hand_off_gets_the_grant
        a_repeat_after_the_release_is_told_that_the_lease_is_over
        a_repeat_after_the_expiry_is_told_that_the_lease_is_over
        an_expired_lease_is_remembered_for_a_minute
        a_released_lease_is_remembered_for_two_seconds_however_many_follow
        the_last_sixteen_released_leases_are_remembered_however_old
    }
    Trusted closures {
        at_least_closes_a_lock_after_a_release
        at_least_closes_a_lock_after_an_expiry
        at_least_closes_a_lock_after_a_disconnect_grace
        at_least_is_over_after_a_longer_hold
        an_operator_closes_a_lock_behind_its_holder
        a_lock_that_is_opened_is_granted_to_the_next_waiter
        an_operator_opens_a_lock_that_a_lease_has_closed
        a_closure_is_never_shortened
        a_lock_that_nobody_has_used_can_be_closed
    }
    Trusted revocation {
        a_revoked_lease_is_renewed_no_more_and_holds_until_it_has_run_out
        a_revoked_lease_that_is_given_back_is_free_at_once
        a_revocation_never_shortens_a_validity
        a_grace_lets_the_lease_be_renewed_until_its_end
        the_earliest_end_of_several_revocations_counts
        a_revocation_later_than_max_hold_changes_no_end
        an_unsafe_revocation_frees_the_lock_now
        a_revocation_that_is_only_asked_for_changes_nothing
        a_revocation_hits_no_other_lease
        a_revoked_lease_is_remembered_for_a_minute
        a_lock_delay_of_a_revocation_closes_the_lock_however_it_ends
        the_lock_delay_of_the_lease_closes_the_lock_only_if_it_runs_out
        the_stream_of_a_revoked_lease_is_notified
        a_revoked_lease_is_put_on_no_stream
        entering_a_revoked_lease_is_refused
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
        t19_an_entry_renews_and_adds_nothing_up
        an_entry_keeps_the_ttl_of_the_lease
        a_repeated_entry_with_other_arguments_is_refused
        t22_the_same_owner_without_the_lease_does_not_enter
        t21_a_released_entry_is_refused_for_two_seconds
        t21_an_entry_that_comes_after_its_release_is_refused
        a_lease_enters_at_most_sixty_four_times
        cancelling_the_last_attempt_of_an_entry_takes_only_that_entry
        cancelling_the_call_that_made_the_lease_leaves_its_other_entries
        the_call_that_created_the_lease_has_ended_after_its_entry_is_released
        an_expiry_ends_every_entry
        entering_past_max_hold_is_refused
        seed_reentrant_unlock_answers_nil_0_and_1
    }
    Trusted added_locks {
        an_added_lock_is_held_under_the_same_lease
        an_added_lock_is_waited_for_in_the_queue
        a_repeat_of_an_added_lock_gets_the_same_grant
        adding_a_lock_that_the_lease_holds_enters_it
        a_released_lock_is_added_again
        a_lock_that_was_added_again_is_reported_as_released_to_its_older_token
        t21_a_late_copy_of_an_add_whose_lock_was_released_is_refused
        a_lock_that_expired_is_not_added_again
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
        the_end_of_an_old_stream_does_nothing_to_a_lease_that_moved
        a_lease_on_a_stream_is_changed_there_only
        a_lapse_ends_the_lease_like_an_expiry
        a_lapse_is_followed_by_the_lock_delay
    }
    Trusted attempts {
        cancelling_one_attempt_of_a_holder_keeps_the_lock
        cancelling_the_last_attempt_of_a_holder_hands_the_lock_on
        cancelling_the_last_attempt_of_a_waiter_removes_it_from_the_queue
        an_attempt_that_arrives_twice_counts_once
        an_attempt_cancelled_before_it_arrived_is_refused
        an_attempt_cancelled_before_it_arrived_is_not_queued
        a_tombstone_refuses_its_own_attempt_only
        a_tombstone_is_kept_for_two_seconds
        cancelling_nine_repeats_of_a_granted_call_keeps_its_lease
        a_ninth_queued_attempt_is_refused_and_the_other_eight_stay_queued
        a_cancelled_call_may_come_again
    }
    Trusted leases {
        a_renewal_extends_by_the_present_ttl
        a_renewal_changes_the_ttl_from_then_on
        a_renewal_never_shortens
        a_renewal_keeps_the_time_of_the_grant
        any_broker_may_renew_and_release
        a_lease_that_the_lock_never_knew_is_not_found
        a_repeated_release_is_reported_as_repeated
        a_release_after_the_expiry_is_reported_as_late
        a_release_after_the_expiry_hands_the_lock_on
        a_released_lock_is_free_at_once
        tokens_rise_over_release_expiry_and_cancel
        tokens_rise_when_the_clock_steps_back
        locks_count_their_tokens_apart
    }
    Trusted queue {
        a_call_that_leaves_does_not_change_the_order_of_the_others
        a_free_lock_without_a_queue_is_granted_at_once_to_a_waiting_call
    }
    Trusted hand_offs {
        without_tokens_in_the_queue_every_hand_off_is_claimed
    }
    Trusted inspection {
        an_unknown_lock_is_unknown
        a_holder_is_shown_with_owner_token_and_times
        an_expired_holder_is_not_shown
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
    }
    Recovering recovery {
        a_waiter_leaves_a_recovering_store
        a_recovering_store_answers_renewals_and_releases
        a_recovering_store_refuses_a_call_that_would_not_wait
    }
    Trusted seeds {
        seed_try_lock_takes_lock_and_expiry_in_one_step
        seed_try_lock_of_a_held_lock_fails_at_once_and_names_the_holder
        seed_blocking_lock_is_granted_when_the_holder_releases
        seed_lock_time_out_frees_the_lock
        seed_lock_extension_moves_the_time_out
        seed_lock_without_ttl_is_healed
        seed_getset_race_for_an_expired_lock_has_one_winner
        seed_unlock_only_by_its_holder
        seed_automatic_renewal_holds_the_lock_for_any_time
        seed_is_locking_is_an_inspection_that_changes_nothing
    }
    Trusted lease_options {
        max_hold_cuts_the_first_validity
        max_hold_cuts_every_renewal
        a_lease_past_max_hold_can_be_released
        max_hold_counts_from_the_grant
        a_repeat_past_max_hold_is_told_that_the_lease_is_over
        a_longer_ttl_does_not_pass_max_hold
        seed_automatic_renewal_ends_at_its_cap
        lock_delay_closes_a_lock_after_an_expiry
        lock_delay_counts_from_the_expiry_not_from_its_detection
        lock_delay_does_not_follow_a_release
        lock_delay_does_not_follow_a_cancelled_call
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
        t27_a_token_belongs_to_a_grant_and_repeats_do_not_change_it
        t28_a_former_holder_never_learns_the_token_of_the_next
        t35_an_idle_lock_is_forgotten
        t35_commands_that_find_nothing_leave_nothing
        t36_a_command_sees_its_own_lock_only
        t38_names_that_look_like_keys_do_not_collide
    }
}
