//! What every SDK must do, each behaviour written once and played by the probe program of a language.
//! `tests/suite/README.md` says how; `tests/suite_<language>.rs` play them.

pub mod brokers;
pub mod copies;
pub mod doors;
pub mod ending;
pub mod errors;
pub mod holding;
pub mod house;
pub mod kinds;
pub mod language;
pub mod line;
pub mod network;
pub mod probe;
pub mod sale;
pub mod scene;
pub mod secrets;
pub mod store;
pub mod wire;

/// Makes a test of every scenario, played by probes of these two languages, mostly by the first.
#[macro_export]
macro_rules! play {
    ($one:ident beside $other:ident) => {
        $crate::play! { $one $other
            brokers {
                a_killed_broker_costs_neither_locks_nor_places
                a_broker_that_comes_back_finds_its_leases
                a_drained_broker_is_left_in_time
                without_a_broker_a_lock_is_lost_in_time
            }
            copies {
                a_forged_lease_does_nothing
                a_release_by_a_copy_is_told
                a_lease_that_moved_away_is_told
            }
            ending {
                a_killed_holder_is_replaced_at_the_end_of_its_time
                a_lock_of_a_killed_program_goes_on
                an_exit_without_release_keeps_the_lock_to_its_end
                a_program_that_ends_gives_its_locks_back
                a_shutdown_gives_everything_back
                a_disconnect_grace_frees_sooner
                a_lock_delay_keeps_a_lock_closed
                a_lock_is_held_no_longer_than_max_hold
                a_revoked_lock_is_released_when_its_holder_stops
                a_stopped_process_knows_before_it_is_asked
                a_loss_is_final
                a_suspend_ends_trust_at_once
            }
            errors {
                a_probe_is_of_its_language
                calls_that_are_not_legal_are_told_by_their_class
                an_endpoint_that_is_none_is_told_by_its_class
            }
            holding {
                a_lock_is_held_and_given_back
                a_try_on_a_held_lock_names_the_holder
                a_wait_that_is_over_says_so_and_leaves_the_line
                the_holder_of_a_lock_can_be_observed
                a_blocked_main_thread_keeps_its_lock
                a_thousand_leases_live_on_one_connection
                a_client_that_was_idle_has_a_lock_at_once
            }
            kinds {
                readers_share_and_a_writer_has_its_turn
                permits_add_up_to_the_limit
                several_locks_are_taken_all_or_none
                a_lease_is_entered_and_left_in_any_order
                a_lock_is_added_to_a_lease_and_given_back_alone
                locks_that_are_added_at_the_same_time_are_all_kept
                two_queued_calls_of_a_lease_for_the_same_lock_are_both_granted
                an_upgrade_is_denied
            }
            line {
                a_line_keeps_its_order_across_programs
                a_wait_may_be_longer_than_the_validity
                a_waiter_is_told_its_place
                a_cancelled_wait_leaves_the_line
                a_grant_that_crosses_a_cancel_is_given_back
                a_cancel_leaves_no_lock_behind
            }
            network {
                a_partition_is_noticed_before_the_next_grant
                validity_counts_from_the_sending
                a_late_grant_is_valid_for_less
                a_late_grant_is_renewed_in_time
                a_lost_grant_is_asked_for_again
                a_lost_release_is_repeated_and_harms_nobody
            }
            sale {
                a_crowd_buys_exactly_the_stock
            }
            secrets {
                secrets_are_in_no_output
                tls_shows_a_certificate_and_is_checked
            }
            store {
                a_store_that_stops_for_a_while_costs_nothing
                a_store_that_stops_for_long_costs_the_lock
                a_store_that_lost_its_data_is_told_of
                a_full_store_is_told_of_and_keeps_leases
            }
        }
    };
    ($one:ident $other:ident $($theme:ident { $($scenario:ident)* })*) => {
        $(mod $theme {
            use $crate::suite::{language::{Cast, Language}, $theme as scenarios};
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

/// The same for the scenarios of brokers that ask who calls.
#[macro_export]
macro_rules! play_doors {
    ($one:ident) => {
        $crate::play! { $one $one
            doors {
                each_door_lets_in_who_has_the_key
                who_has_no_key_is_told_so
                who_has_no_leave_is_told_so
            }
        }
    };
}

/// The same for the scenarios in which both languages have a probe.
#[macro_export]
macro_rules! play_together {
    ($one:ident and $other:ident) => {
        $crate::play! { $one $other
            ending {
                a_killed_holder_is_replaced_at_the_end_of_its_time
            }
            holding {
                a_try_on_a_held_lock_names_the_holder
                the_holder_of_a_lock_can_be_observed
            }
            kinds {
                readers_share_and_a_writer_has_its_turn
                permits_add_up_to_the_limit
            }
            line {
                a_line_keeps_its_order_across_programs
                a_waiter_is_told_its_place
            }
            sale {
                a_crowd_buys_exactly_the_stock
            }
        }
    };
}
