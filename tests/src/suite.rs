//! Behaviours that every SDK must have, each written once and run with the probe program of a
//! language. `tests/suite/README.md` specifies the probes; `tests/tests/suite/<language>.rs` run the
//! scenarios.

pub mod authentication;
pub mod brokers;
pub mod errors;
pub mod flash_sale;
pub mod forged_leases;
pub mod held_locks;
pub mod language;
pub mod lock_modes;
pub mod lost_holders;
pub mod messages;
pub mod network;
pub mod probe;
pub mod queue;
pub mod scenario;
pub mod secrets;
pub mod secured_brokers;
pub mod store;

/// Defines a test for every scenario, run with probes of two languages. Most probes are of the
/// first.
#[macro_export]
macro_rules! play {
    ($one:ident beside $other:ident) => {
        $crate::play! { $one $other
            brokers {
                a_killed_broker_loses_no_lock_and_no_queue_position
                a_broker_that_comes_back_finds_its_leases
                a_drained_broker_is_left_in_time
                without_a_broker_a_lock_is_lost_in_time
            }
            forged_leases {
                a_forged_lease_has_no_effect
                a_release_by_a_copy_is_reported_to_the_holder
                a_lease_that_moved_away_is_reported_to_the_former_holder
            }
            lost_holders {
                a_killed_holder_is_replaced_at_the_end_of_its_time
                a_lock_of_a_killed_program_is_handed_on
                an_exit_without_release_keeps_the_lock_to_its_end
                a_program_that_ends_gives_its_locks_back
                a_shutdown_releases_all_leases
                a_disconnect_grace_frees_sooner
                a_lock_delay_keeps_a_lock_closed
                a_lock_with_at_least_stays_closed_after_its_release
                a_lock_is_held_no_longer_than_max_hold
                a_revoked_lock_is_released_when_its_holder_stops
                a_stopped_process_reports_its_loss_before_any_reply
                a_loss_is_final
                a_suspend_ends_the_validity_at_once
            }
            errors {
                a_probe_reports_its_language
                invalid_calls_are_rejected_with_their_error_class
                invalid_endpoints_are_rejected_with_their_error_class
            }
            held_locks {
                a_lock_is_held_and_given_back
                a_try_on_a_held_lock_names_the_holder
                a_wait_that_timed_out_reports_it_and_leaves_the_queue
                the_holder_of_a_lock_can_be_observed
                a_blocked_main_thread_keeps_its_lock
                a_thousand_leases_live_on_one_connection
                a_client_that_was_idle_has_a_lock_at_once
            }
            lock_modes {
                readers_share_and_a_writer_has_its_turn
                permits_add_up_to_the_limit
                a_set_limit_is_followed_until_it_is_removed
                several_locks_are_taken_all_or_none
                a_lease_is_entered_and_left_in_any_order
                a_lock_is_added_to_a_lease_and_given_back_alone
                locks_that_are_added_at_the_same_time_are_all_kept
                a_partial_release_is_remembered_after_thirty_other_holders
                two_queued_calls_of_a_lease_for_the_same_lock_are_both_granted
                an_upgrade_is_denied
            }
            queue {
                a_line_keeps_its_order_across_programs
                a_wait_may_be_longer_than_the_validity
                a_waiter_is_told_its_place
                a_waiter_of_a_closed_lock_is_told_why
                a_cancelled_wait_leaves_the_queue
                a_grant_that_crosses_a_cancel_is_given_back
                a_cancel_leaves_no_lock_behind
            }
            network {
                a_partition_is_noticed_before_the_next_grant
                validity_counts_from_the_sending
                a_late_grant_is_valid_for_less
                a_late_grant_is_renewed_in_time
                a_lost_grant_is_asked_for_again
                a_lost_release_is_repeated_without_harm
            }
            flash_sale {
                a_crowd_buys_exactly_the_stock
            }
            secrets {
                secrets_are_in_no_output
                tls_shows_a_certificate_and_is_checked
            }
            store {
                a_store_that_stops_for_a_while_costs_nothing
                a_store_that_stops_for_long_costs_the_lock
                a_loss_of_data_in_the_store_is_reported
                a_full_store_rejects_new_leases_and_renews_others
            }
        }
    };
    ($one:ident $other:ident $($theme:ident { $($scenario:ident)* })*) => {
        $(mod $theme {
            use $crate::suite::{$theme as scenarios, language::{Cast, Language}};
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $scenario() {
                    let (one, other) = (Language::$one, Language::$other);
                    scenarios::$scenario(Cast { one, other }).await;
                }
            )*
        })*
    };
}

/// Defines tests for the scenarios of brokers that authenticate callers.
#[macro_export]
macro_rules! play_doors {
    ($one:ident) => {
        $crate::play! { $one $one
            authentication {
                each_kind_of_credential_is_accepted
                a_client_without_a_valid_credential_is_rejected
                a_client_without_permission_is_rejected
            }
        }
    };
}

/// Defines tests for the scenarios in which both languages have a probe.
#[macro_export]
macro_rules! play_together {
    ($one:ident and $other:ident) => {
        $crate::play! { $one $other
            lost_holders {
                a_killed_holder_is_replaced_at_the_end_of_its_time
            }
            held_locks {
                a_try_on_a_held_lock_names_the_holder
                the_holder_of_a_lock_can_be_observed
            }
            lock_modes {
                readers_share_and_a_writer_has_its_turn
                permits_add_up_to_the_limit
            }
            queue {
                a_line_keeps_its_order_across_programs
                a_waiter_is_told_its_place
            }
            flash_sale {
                a_crowd_buys_exactly_the_stock
            }
        }
    };
}
