//! Mutual exclusion, order and hand-off under contention and faults.

mod loads {
    mod fifo;
    mod mutual_exclusion;
    mod rolling_limit;
    mod several;
}
mod waits {
    mod lost_lock;
    mod vanished;
}

mod attempts;
mod cost;
mod disconnect_grace;
mod flash_sale;
mod keeping_place;
mod late_hand_off;
mod late_move;
mod late_release;
mod lottery;
mod span_limit;
mod starvation;
mod together;
